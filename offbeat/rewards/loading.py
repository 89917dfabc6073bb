"""From a reward's name and arguments to the function; imported in the worker's process only."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from offbeat.errors import ConfigError
from offbeat.rewards import built_in

RewardFunction = Callable[..., Any]

BUILT_IN: Mapping[str, RewardFunction] = {
    "accuracy": built_in.accuracy,
    "exact_match": built_in.exact_match,
    "format": built_in.regex_format,
    "length": built_in.length,
    "bleu": built_in.bleu,
    "chrf": built_in.chrf,
    "keyword": built_in.keyword,
}


def load_function(name: str, arguments: Mapping[str, Any]) -> RewardFunction:
    """The reward of this name with its arguments bound; raises ConfigError when it cannot be had or takes no such."""
    found = BUILT_IN.get(name) or _import(name)
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError as error:
        raise ConfigError(f"reward {name!r}: it cannot be called by name, expected TRL's signature") from error
    if name in BUILT_IN:
        _check_arguments(name, {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}, arguments)
    return functools.partial(found, **arguments) if arguments else found


def _check_arguments(name: str, expected: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError unless a built-in reward is given what it takes, and all of it."""
    if arguments.keys() != expected.keys():
        raise ConfigError(
            f"reward {name!r}: got arguments {sorted(arguments)}, expected {', '.join(expected) or 'none at all'}"
        )
    for key, value in arguments.items():
        try:
            TypeAdapter(expected[key]).validate_python(value, strict=True)
        except ValidationError as error:
            raise ConfigError(f"reward {name!r}: {key}: got {value!r}; {error.errors()[0]['msg']}") from error


def _import(name: str) -> RewardFunction:
    module_name, colon, function_name = name.partition(":")
    if not colon:
        known = ", ".join(BUILT_IN)
        raise ConfigError(f"reward: got {name!r}, expected one of {known}, or `package.module:function`")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"reward {name!r}: no module {error.name!r}; install it, or put it on PYTHONPATH") from error
    except (Exception, SystemExit) as error:
        # Its message may hold what nobody should read in a log; the worker's own output has it in full.
        raise ConfigError(f"reward {name!r}: importing {module_name} raised {type(error).__name__}") from error
    found = getattr(module, function_name, None)
    if not callable(found):
        raise ConfigError(f"reward {name!r}: {module_name} has no function {function_name!r}")
    return found  # type: ignore[no-any-return]
