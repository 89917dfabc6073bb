"""From a YAML file, `key=value` overrides and the environment to a RunConfig, or one ConfigError naming every fault."""

import difflib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

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

# Below this likeness (0 to 1) a valid key is no guess at what was meant.
LEAST_LIKENESS = 0.6


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
    location = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"  {location}: unknown key{_nearest(location)}"
    message = fault["msg"].removeprefix("Value error, ")
    got = "" if isinstance(fault["input"], dict) else f"got {fault['input']!r}; "
    return f"  {location or 'configuration'}: {got}{message}"


def _nearest(key: str) -> str:
    section, _, word = key.rpartition(".")
    sections = {name.rpartition(".")[0] for name in all_keys()} - {""}
    likeness = {name: _likeness(word, section, name) for name in [*all_keys(), *sorted(sections)]}
    best = max(likeness, key=likeness.__getitem__)
    if likeness[best] < LEAST_LIKENESS:
        return f"; valid keys here: {', '.join(_model_at(section.split('.')).model_fields)}"
    return f"; did you mean {best.rpartition('.')[2] if best.rpartition('.')[0] == section else best}?"


def _likeness(word: str, section: str, name: str) -> float:
    """How well a valid name fits: the same word in another section first, then a near one in the same section."""
    home, _, valid = name.rpartition(".")
    ratio = difflib.SequenceMatcher(None, word, valid).ratio()
    return min(ratio + 0.15, 0.99) if home == section and ratio < 1 else ratio


def _model_at(location: Iterable[str]) -> type[BaseModel]:
    model: type[BaseModel] = RunConfig
    for part in location:
        inner = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        model = inner
    return model


def all_keys() -> list[str]:
    """Every dotted key that a run configuration knows, in order."""
    return list(_keys_of(RunConfig, ""))


def _keys_of(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _keys_of(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
