"""From a reward's name and arguments to the function; imported in the worker's process only."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

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
    required = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if missing := [wanted for wanted in required if wanted not in arguments and name in BUILT_IN]:
        raise ConfigError(f"reward {name!r}: got arguments {sorted(arguments)}, expected {', '.join(missing)} as well")
    return functools.partial(found, **arguments) if arguments else found


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
