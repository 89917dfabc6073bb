"""From a configuration to environments: which vectorisation is chosen, and what is refused with which words."""

import sys
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from offbeat.config import ControlConfig
from offbeat.errors import ConfigError, UnsupportedSpace
from offbeat.workloads.control.columns import Box, Discrete, Spaces
from offbeat.workloads.control.environment import autoreset_mode, make_env, make_vector_env, probe_spaces
from offbeat.workloads.control.spaces import read_spaces
from offbeat.workloads.control.wrappers import FrameSkip

FLAT = gym.spaces.Box(-1, 1, (2,), np.float32)
TWO = gym.spaces.Discrete(2)


def test_an_id_with_a_vector_entry_point_uses_it():
    env = make_vector_env(ControlConfig(env_id="CartPole-v1"), num_envs=3)
    assert isinstance(env, CartPoleVectorEnv)
    assert env.num_envs == 3
    assert env.max_episode_steps == 500


def test_frame_skip_goes_around_the_vector_entry_point():
    env = make_vector_env(ControlConfig(env_id="CartPole-v1", frame_skip=4), num_envs=2)
    assert isinstance(env, SyncVectorEnv)
    assert all(isinstance(one, FrameSkip) for one in env.envs)


def test_other_ids_are_vectorised_with_next_step_autoreset():
    env = make_vector_env(ControlConfig(env_id="Acrobot-v1"), num_envs=2)
    assert isinstance(env, SyncVectorEnv)
    assert autoreset_mode(env) is AutoresetMode.NEXT_STEP


def test_keyword_arguments_reach_the_environment():
    config = ControlConfig(env_id="CartPole-v1", env_kwargs={"sutton_barto_reward": True})
    env = make_vector_env(config, num_envs=1)
    env.reset(seed=0)
    assert env.step(np.array([0]))[1].tolist() == [0.0]


def test_a_function_that_makes_one_environment_is_called_once_for_each(door, counting_env):
    made = []

    def make(plan):
        made.append(counting_env(plan))
        return made[-1]

    env = make_vector_env(ControlConfig(env_fn=door(make), env_kwargs={"plan": "2T"}), num_envs=3)
    assert env.envs == made


def test_a_function_that_makes_a_vector_environment_is_told_how_many(vectorised):
    env = make_vector_env(ControlConfig(env_fn=vectorised(AutoresetMode.SAME_STEP, "2T")), num_envs=5)
    assert env.num_envs == 5
    assert autoreset_mode(env) is AutoresetMode.SAME_STEP


def test_a_vector_environment_plays_alone_as_its_first_one(vectorised):
    env = make_env(ControlConfig(env_fn=vectorised(AutoresetMode.DISABLED, "3T")))
    assert env.reset(seed=0)[0].tolist() == [0]
    assert [env.step(0)[0].tolist() for _ in range(3)] == [[1], [2], [3]]


def test_a_fixed_vector_environment_plays_alone_although_its_others_end(door, counting_env):
    def make():
        return SyncVectorEnv([lambda: counting_env("9T"), lambda: counting_env("2T")], autoreset_mode="Disabled")

    env = make_env(ControlConfig(env_fn=door(make)))
    env.reset(seed=0)
    assert [env.step(0)[0].tolist() for _ in range(6)] == [[1], [2], [3], [4], [5], [6]]


SPACES = [
    (FLAT, TWO, Spaces(observation_shape=(2,), observation_dtype="float32", action=Discrete(n=2))),
    (
        gym.spaces.Box(0, 255, (3,), np.uint8),
        gym.spaces.Discrete(4, start=-2),
        Spaces(observation_shape=(3,), observation_dtype="float32", action=Discrete(n=4, start=-2)),
    ),
    (
        gym.spaces.Discrete(6, start=1),
        gym.spaces.Box(np.float32([[-1, -np.inf]]), np.float32([[2, np.inf]])),
        Spaces(
            observation_shape=(6,),
            observation_dtype="float32",
            action=Box(shape=(1, 2), low=(-1, -np.inf), high=(2, np.inf)),
        ),
    ),
    (
        gym.spaces.Box(0, 255, (8, 7), np.uint8),
        TWO,
        Spaces(observation_shape=(8, 7), observation_dtype="uint8", action=Discrete(n=2)),
    ),
    (
        gym.spaces.Box(0, 255, (8, 7, 3), np.uint8),
        TWO,
        Spaces(observation_shape=(8, 7, 3), observation_dtype="uint8", action=Discrete(n=2)),
    ),
]


@pytest.mark.parametrize(("observation", "action", "expected"), SPACES)
def test_supported_spaces(observation, action, expected):
    assert read_spaces(observation, action) == expected


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Dict({"a": FLAT}),
        gym.spaces.MultiBinary(3),
        gym.spaces.Text(4),
        gym.spaces.Box(0, 1, (3, 3), np.float32),
        gym.spaces.Box(0, 255, (2, 3, 4, 5), np.uint8),
        gym.spaces.Box(0, 1, (), np.float32),
    ],
)
def test_other_observation_spaces_are_refused(space):
    with pytest.raises(
        UnsupportedSpace, match=r"observation space: got .*, supported are a flat Box .* image Box .* Discrete"
    ):
        read_spaces(space, TWO)


@pytest.mark.parametrize(
    "space",
    [gym.spaces.MultiDiscrete([2, 2]), gym.spaces.Box(0, 3, (2,), np.int32), gym.spaces.Tuple([TWO])],
)
def test_other_action_spaces_are_refused(space):
    with pytest.raises(UnsupportedSpace, match=r"action space: got .*, supported are Discrete, or a Box of floats"):
        read_spaces(FLAT, space)


def test_unsupported_spaces_are_found_before_a_run(door, counting_env):
    def make():
        env = counting_env()
        env.observation_space = gym.spaces.Dict({"count": FLAT})
        return env

    with pytest.raises(UnsupportedSpace, match="Dict"):
        probe_spaces(ControlConfig(env_fn=door(make)))


@pytest.mark.parametrize(
    ("env_id", "near"), [("CartPole-v7", "CartPole-v1"), ("cartpol", "CartPole-v"), ("Acrobt-v1", "Acrobot-v1")]
)
def test_an_unknown_id_names_the_nearest(env_id, near):
    with pytest.raises(ConfigError, match=rf"no environment '{env_id}' is registered; did you mean .*{near}"):
        probe_spaces(ControlConfig(env_id=env_id))


def test_an_id_like_no_other_says_where_to_look():
    with pytest.raises(ConfigError, match="pprint_registry"):
        probe_spaces(ControlConfig(env_id="0000"))


def test_an_id_of_another_package_needs_that_package():
    with pytest.raises(ConfigError, match="ModuleNotFoundError: No module named 'no_such_package'"):
        probe_spaces(ControlConfig(env_id="no_such_package:Env-v0"))


def test_a_missing_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"pip install 'offbeat\[box2d\]'"):
        probe_spaces(ControlConfig(env_id="LunarLander-v3"))


def test_arguments_that_an_environment_does_not_take_are_named():
    with pytest.raises(ConfigError, match=r"Acrobot-v1 with {'gravity': 3}: TypeError: .*gravity"):
        probe_spaces(ControlConfig(env_id="Acrobot-v1", env_kwargs={"gravity": 3}))


def test_a_missing_module_or_function_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "empty_module", ModuleType("empty_module"))
    with pytest.raises(ConfigError, match=r"no_such_module:make cannot be imported .*ModuleNotFoundError"):
        probe_spaces(ControlConfig(env_fn="no_such_module:make"))
    with pytest.raises(ConfigError, match=r"empty_module:make cannot be imported .*AttributeError"):
        probe_spaces(ControlConfig(env_fn="empty_module:make"))


def test_a_function_that_raises_is_quoted(door):
    def make():
        raise FileNotFoundError("level.map")

    with pytest.raises(ConfigError, match=r"behind_the_door:make .*FileNotFoundError: level.map"):
        probe_spaces(ControlConfig(env_fn=door(make)))


def test_a_function_must_return_an_environment(door):
    with pytest.raises(ConfigError, match="returned int, expected a gymnasium Env or VectorEnv"):
        probe_spaces(ControlConfig(env_fn=door(lambda: 3)))


def test_a_door_must_lead_to_a_function(door):
    with pytest.raises(ConfigError, match="is a int, expected a function"):
        probe_spaces(ControlConfig(env_fn=door(3)))


def test_a_vector_environment_of_another_size_is_refused(door, counting_env):
    path = door(lambda: SyncVectorEnv([counting_env] * 2))
    with pytest.raises(ConfigError, match="made 2 environments, expected 5"):
        make_vector_env(ControlConfig(env_fn=path), num_envs=5)


def test_frame_skip_cannot_wrap_a_vector_environment(vectorised):
    config = ControlConfig(env_fn=vectorised(AutoresetMode.NEXT_STEP, "2T"), frame_skip=2)
    with pytest.raises(ConfigError, match="frame_skip cannot wrap"):
        make_vector_env(config, num_envs=2)


@pytest.mark.parametrize("mode", [None, "sometimes"])
def test_a_vector_environment_must_say_how_it_resets(mode, door, counting_env):
    def make(num_envs):
        env = SyncVectorEnv([counting_env] * num_envs)
        env.metadata = {"autoreset_mode": mode}
        return env

    with pytest.raises(ConfigError, match=r"metadata\['autoreset_mode'\] is .*, expected one of .*NEXT_STEP"):
        probe_spaces(ControlConfig(env_fn=door(make)))


def test_environments_of_different_spaces_are_refused(door, counting_env):
    made = []

    def make():
        made.append(counting_env())
        made[-1].action_space = gym.spaces.Discrete(len(made) + 1)
        return made[-1]

    with pytest.raises(ConfigError, match=r"RuntimeError: .*action"):
        make_vector_env(ControlConfig(env_fn=door(make)), num_envs=2)
