"""From a YAML file, `key=value` overrides and the environment to a RunConfig, or one ConfigError that names every fault."""

import difflib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from offbeat.config.models import RunConfig
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
) -> RunConfig:
    """Read a run configuration; later sources win: file, environment, overrides.

    overrides: `section.key=value` strings (values in YAML syntax) or a mapping of the same dotted keys.
    Raises ConfigError naming each unknown key with its nearest valid one, and each value out of bounds.
    """
    source = Path(path)
    try:
        data = yaml.safe_load(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {source}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} is not YAML: {error}") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: got a {type(data).__name__}, expected a mapping of sections")
    for name, value in _environment_overrides(os.environ if environ is None else environ):
        _assign(data, name, value)
    for key, value in _parsed(overrides):
        _assign(data, key, value)
    return parse_config(data, source=str(source))


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
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def config_changes(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose value differs, with the old and the new value."""
    before, after = dict(_flatten(old.model_dump(mode="json"))), dict(_flatten(new.model_dump(mode="json")))
    return {key: (before.get(key), after.get(key)) for key in sorted(before | after) if before.get(key) != after.get(key)}


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
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{key}: got {text!r}, which is not a YAML value") from error
    # YAML 1.1 reads 1e-3 as a string; people mean the number.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


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
        return f"  {location}: unknown key{_nearest(fault['loc'])}"
    return f"  {location or 'configuration'}: got {fault['input']!r}; {fault['msg']}"


def _nearest(location: tuple[Any, ...]) -> str:
    valid = list(_model_at(location[:-1]).model_fields)
    close = difflib.get_close_matches(str(location[-1]), valid, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]}?"
    elsewhere = difflib.get_close_matches(str(location[-1]), [key.rsplit(".", 1)[-1] for key in all_keys()], n=1, cutoff=0.7)
    for key in all_keys():
        if elsewhere and key.rsplit(".", 1)[-1] == elsewhere[0]:
            return f"; did you mean {key}?"
    return f"; valid keys here: {', '.join(valid)}"


def _model_at(location: tuple[Any, ...]) -> type[BaseModel]:
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
