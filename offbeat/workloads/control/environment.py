"""From a configuration to environments, by Gymnasium id or through a `module:function`, many at once or one alone.

    env_id  ── has a vector entry point, no frame skip ──> its own VectorEnv
            └─ otherwise ──> Env (+ FrameSkip) ──> SyncVectorEnv, next-step autoreset
    env_fn  ── returns a VectorEnv ──> that one
            └─ returns an Env (+ FrameSkip) ──> SyncVectorEnv, next-step autoreset

Whatever goes wrong here is a ConfigError: environments are made before a run starts.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from offbeat.config import ControlConfig
from offbeat.errors import ConfigError
from offbeat.workloads.control.columns import Spaces
from offbeat.workloads.control.spaces import read_spaces
from offbeat.workloads.control.wrappers import FirstOfVector, FrameSkip

AnyEnv = gym.Env[Any, Any]
AnyVectorEnv = VectorEnv[Any, Any, Any]


def make_vector_env(config: ControlConfig, *, num_envs: int) -> AnyVectorEnv:
    """`num_envs` environments stepped together, not yet reset; raises ConfigError. Touches no global random state."""
    env = _make_vector(config, num_envs)
    if env.num_envs != num_envs:
        env.close()
        raise ConfigError(
            f"{name_of(config)} made {env.num_envs} environments, expected {num_envs}; let it take `num_envs`"
        )
    autoreset_mode(env)
    return env


def make_env(config: ControlConfig) -> AnyEnv:
    """One environment alone, whose episodes depend on nothing but the seed of `reset`; raises ConfigError."""
    made = _call_function(config, 1) if config.env_fn else _make_by_id(config)
    return FirstOfVector(made) if isinstance(made, VectorEnv) else _skipping(made, config)


def probe_spaces(config: ControlConfig) -> Spaces:
    """Spaces of one environment; raises ConfigError (UnsupportedSpace) for whatever would keep a run from working."""
    env = _make_vector(config, 1)
    try:
        autoreset_mode(env)
        return read_spaces(env.single_observation_space, env.single_action_space)
    finally:
        env.close()


def autoreset_mode(env: AnyVectorEnv) -> AutoresetMode:
    """How a vector environment goes on after an episode's end; raises ConfigError when it does not say."""
    got = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(got)
    except ValueError as error:
        modes = ", ".join(str(mode) for mode in AutoresetMode)
        raise ConfigError(f"{env}: metadata['autoreset_mode'] is {got!r}, expected one of {modes}") from error


def name_of(config: ControlConfig) -> str:
    """What an error message calls the environment."""
    return config.env_fn or config.env_id


def _make_vector(config: ControlConfig, num_envs: int) -> AnyVectorEnv:
    first = _call_function(config, num_envs) if config.env_fn else _vector_entry_point(config, num_envs)
    if isinstance(first, VectorEnv):
        if config.frame_skip > 1:
            first.close()
            raise ConfigError(
                f"{name_of(config)} is a vector environment, which frame_skip cannot wrap; skip inside it"
            )
        return first
    # The function was called once already to see what it returns; that environment is the first of them.
    started = [] if first is None else [_skipping(first, config)]
    makers: list[Callable[[], AnyEnv]] = [lambda env=env: env for env in started]  # type: ignore[misc]
    makers += [lambda: make_env(config)] * (num_envs - len(started))
    with foreign(f"{name_of(config)}: making {num_envs} environments"):
        return SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)


def _skipping(env: AnyEnv, config: ControlConfig) -> AnyEnv:
    return FrameSkip(env, config.frame_skip) if config.frame_skip > 1 else env


def _make_by_id(config: ControlConfig) -> AnyEnv:
    spec = _find_spec(config.env_id)
    with foreign(f"{config.env_id} with {config.env_kwargs or 'no arguments'}"):
        # Gymnasium's checker looks at the first steps only, and costs time on every one.
        env: AnyEnv = gym.make(spec, **{"disable_env_checker": True, **config.env_kwargs})
    return env


def _vector_entry_point(config: ControlConfig, num_envs: int) -> AnyVectorEnv | None:
    spec = _find_spec(config.env_id)
    if spec.vector_entry_point is None or spec.additional_wrappers or config.frame_skip > 1:
        return None
    with foreign(f"{config.env_id} with {config.env_kwargs or 'no arguments'}"):
        return gym.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **config.env_kwargs)


def _find_spec(env_id: str) -> EnvSpec:
    module, _, name = env_id.rpartition(":")
    if module:
        with foreign(f"environment {env_id!r}"):
            importlib.import_module(module)
    if name in gym.registry:
        return gym.registry[name]
    near = difflib.get_close_matches(name, list(gym.registry), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`gymnasium.pprint_registry()` lists what there is"
    raise ConfigError(f"no environment {env_id!r} is registered; {hint} (another package's: `its_module:{name}`)")


def _call_function(config: ControlConfig, num_envs: int) -> AnyEnv | AnyVectorEnv:
    function = _load_function(str(config.env_fn))
    with foreign(f"{config.env_fn} with {config.env_kwargs or 'no arguments'}"):
        takes_count = "num_envs" in inspect.signature(function).parameters
        made = function(**({"num_envs": num_envs} if takes_count else {}), **config.env_kwargs)
    if not isinstance(made, gym.Env | VectorEnv):
        raise ConfigError(f"{config.env_fn} returned {type(made).__name__}, expected a gymnasium Env or VectorEnv")
    return made


def _load_function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    with foreign(f"{path} cannot be imported (is its folder on PYTHONPATH?)"):
        function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise ConfigError(f"{path} is a {type(function).__name__}, expected a function that makes an environment")
    return cast("Callable[..., Any]", function)


@contextmanager
def foreign(what: str) -> Iterator[None]:
    """Turn whatever an environment's own code raises while it is made into a ConfigError that says what was tried."""
    try:
        yield
    except ConfigError:
        raise
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(f"{what}: {error}{_extra_for(str(error))}") from error
    except Exception as error:
        raise ConfigError(f"{what}: {type(error).__name__}: {error}") from error


def _extra_for(message: str) -> str:
    return "; or install Offbeat with its extra, `pip install 'offbeat[box2d]'`" if "box2d" in message.lower() else ""
