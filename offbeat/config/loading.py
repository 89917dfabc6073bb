"""From a YAML file, `key=value` overrides and the environment to a RunConfig, or one ConfigError naming every fault."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from offbeat.config.keys import nearest, place_of
from offbeat.config.models import RunConfig
from offbeat.config.yaml_format import read_yaml, write_yaml
from offbeat.errors import ConfigError

# Names that operators know from other systems, and the keys they stand for.
ENVIRONMENT_KEYS = {
    "BATCH_SIZE": "training.batch_size",
    "BUFFER_CAPACITY": "training.buffer_capacity",
    "SYNC_INTERVAL": "training.sync_interval",
    "GRADIENT_CLIP": "training.gradient_clip",
}


def load_config(
    path: Path | str,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    environ: Mapping[str, str] | None = None,
    only: Iterable[str] = (),
) -> RunConfig:
    """Read a run configuration; later sources win: file, environment, overrides.

    overrides: `section.key=value` strings (values in YAML syntax) or a mapping of the same dotted keys.
    only: sections and dotted keys of the file that are looked at, where not all; the rest keeps its defaults.
    Raises ConfigError naming each unknown key with its nearest valid one, and each value out of bounds.
    """
    source = Path(path)
    try:
        data = read_yaml(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {source}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} is not YAML: {error}") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: got a {type(data).__name__}, expected a mapping of sections")
    wanted = list(only)
    if wanted:
        data = _picked(data, wanted)
    for name, value in _environment_overrides(os.environ if environ is None else environ):
        _assign(data, name, value)
    for key, value in _parsed(overrides):
        _assign(data, key, value)
    return parse_config(data, source=str(source))


def _picked(data: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    picked: dict[str, Any] = {}
    for key in keys:
        section, _, name = key.partition(".")
        if section not in data:
            continue
        value = data[section]
        if name and isinstance(value, dict):
            value = {**picked.get(section, {}), **({name: value[name]} if name in value else {})}
        picked[section] = value
    return picked


def parse_config(data: Mapping[str, Any], *, source: str = "configuration") -> RunConfig:
    """Check a mapping and build the RunConfig; raises ConfigError naming every fault with its key."""
    try:
        return RunConfig.model_validate(dict(data))
    except ValidationError as error:
        lines = [_explain(fault) for fault in error.errors()]
        raise ConfigError("\n".join([f"{source}: {len(lines)} fault{'s' * (len(lines) > 1)}", *lines])) from error


def config_digest(config: RunConfig) -> str:
    """SHA-256 of the resolved configuration, hex: two runs with one digest were told the same."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML, which `load_config` reads back to an equal RunConfig."""
    return write_yaml(config.model_dump(mode="json"))


def config_changes(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose value differs, with the old and the new value."""
    before, after = dict(_flatten(old.model_dump(mode="json"))), dict(_flatten(new.model_dump(mode="json")))
    return {
        key: (before.get(key), after.get(key)) for key in sorted(before | after) if before.get(key) != after.get(key)
    }


def _flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _environment_overrides(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name, key in ENVIRONMENT_KEYS.items():
        if name in environ:
            yield key, _yaml_value(name, environ[name])


def _parsed(overrides: Iterable[str] | Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(overrides, Mapping):
        yield from overrides.items()
        return
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"override: got {text!r}, expected section.key=value")
        yield key.strip(), _yaml_value(key, value)


def _yaml_value(key: str, text: str) -> Any:
    try:
        return read_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{key}: got {text!r}, which is not a YAML value") from error


def _assign(data: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = data.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{key}: {section} is a value, not a section")
        data = inner
    data[last] = value


def _explain(fault: Any) -> str:
    key, chosen = place_of(fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"  {key}: unknown key{nearest(key, chosen)}"
    if fault["type"] == "union_tag_invalid":
        return f"  {key}.kind: got {fault['ctx']['tag']!r}; expected one of {fault['ctx']['expected_tags']}"
    message = fault["msg"].removeprefix("Value error, ")
    got = "" if isinstance(fault["input"], dict) else f"got {fault['input']!r}; "
    return f"  {key or 'configuration'}: {got}{message}"
