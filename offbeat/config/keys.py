"""The keys of a run configuration: which there are, where a fault lies, and which valid key was probably meant."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from offbeat.config.models import RunConfig

# Below this likeness (0 to 1) a valid key is no guess at what was meant.
LEAST_LIKENESS = 0.6


def all_keys() -> list[str]:
    """Every dotted key that a run configuration knows, of every kind of work, in order and each once."""
    return list(dict.fromkeys(_keys_of(RunConfig, "", chosen={})))


def place_of(location: Iterable[Any]) -> tuple[str, dict[str, type[BaseModel]]]:
    """A fault's dotted key as the user wrote it, and the section chosen at each dotted place on the way.

    location: pydantic's; where a section depends on its kind, it names that kind in between.
    """
    parts: list[str] = []
    at: type[BaseModel] | None = RunConfig
    choice: dict[str, type[BaseModel]] = {}
    chosen: dict[str, type[BaseModel]] = {"": RunConfig}
    for part in map(str, location):
        if part in choice:
            at, choice = choice[part], {}
        else:
            parts.append(part)
            field = at.model_fields.get(part) if at else None
            members = sections_of(field.annotation) if field else ([at] if at and part.isdigit() else [])
            at = members[0] if len(members) == 1 else None
            choice = {member.model_fields["kind"].default: member for member in members} if len(members) > 1 else {}
        if at is not None:
            chosen[".".join(parts)] = at
    return ".".join(parts), chosen


def nearest(key: str, chosen: dict[str, type[BaseModel]]) -> str:
    """What to say of an unknown key: the valid one that was probably meant, or all that are valid there."""
    section, _, word = key.rpartition(".")
    if any(name == key or name.startswith(f"{key}.") for name in all_keys()):
        return f" of kind {chosen[section].model_fields['kind'].default}; it belongs to another {section}.kind"
    # Of equally good guesses the one of the default kinds is named.
    choices = (_default_sections() | chosen, chosen)
    keys = list(dict.fromkeys(name for choice in choices for name in _keys_of(RunConfig, "", chosen=choice)))
    longer = [name.rpartition(".")[2] for name in keys if name.startswith(f"{key}_")]
    if longer:
        return f"; did you mean {' or '.join(longer)}?"
    sections = {name.rpartition(".")[0] for name in keys} - {""}
    likeness = {name: _likeness(word, section, name) for name in [*keys, *sorted(sections)]}
    best = max(likeness, key=likeness.__getitem__)
    if likeness[best] < LEAST_LIKENESS:
        here = chosen.get(section, RunConfig)
        return f"; valid keys here: {', '.join(here.model_fields)}"
    return f"; did you mean {best.rpartition('.')[2] if best.rpartition('.')[0] == section else best}?"


def sections_of(annotation: Any) -> Sequence[type[BaseModel]]:
    """The sections that a field of this type can hold: none for a value, several where they differ by kind."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, UnionType, tuple):
        return [section for part in get_args(annotation) for section in sections_of(part)]
    return []


def _default_sections() -> dict[str, type[BaseModel]]:
    default = RunConfig()
    return {"workload": type(default.workload), "training.algorithm": type(default.training.algorithm)}


def _keys_of(model: type[BaseModel], prefix: str, *, chosen: dict[str, type[BaseModel]]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = [] if get_origin(field.annotation) is tuple else sections_of(field.annotation)
        key = f"{prefix}{name}"
        for section in [chosen[key]] if key in chosen and inner else inner:
            yield from _keys_of(section, f"{key}.", chosen=chosen)
        if not inner:
            yield key


def _likeness(word: str, section: str, name: str) -> float:
    """How well a valid name fits: the same word in another section first, then a near one in the same section."""
    home, _, valid = name.rpartition(".")
    ratio = difflib.SequenceMatcher(None, word, valid).ratio()
    return min(ratio + 0.15, 0.99) if home == section and ratio < 1 else ratio
