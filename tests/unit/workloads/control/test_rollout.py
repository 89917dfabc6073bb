"""What each slot of a trajectory holds in every autoreset mode, worked out by hand, and what a bad environment does."""

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from offbeat.workloads.control.columns import RESET, TERMINATED, TRUNCATED

E, T, R = TERMINATED, TRUNCATED, RESET

# One environment with episodes of 3 (truncated), 1 (terminated), 2 (truncated), 4 (terminated) steps, and so on;
# unrolls of 4. Observation 21 is episode 2, step 1.
NEXT_STEP = [
    {"observations": [0, 1, 2, 3, 10], "flags": [0, 0, T, R], "rewards": [1, 2, 3, 0], "returns": [6], "lengths": [3]},
    {
        "observations": [10, 11, 20, 21, 22],
        "flags": [E, R, 0, T],
        "rewards": [101, 0, 201, 202],
        "returns": [101, 403],
        "lengths": [1, 2],
    },
    {
        "observations": [22, 30, 31, 32, 33],
        "flags": [R, 0, 0, 0],
        "rewards": [0, 301, 302, 303],
        "returns": [],
        "lengths": [],
    },
    {
        "observations": [33, 34, 40, 41, 42],
        "flags": [E, R, 0, 0],
        "rewards": [304, 0, 401, 402],
        "returns": [1210],
        "lengths": [4],
    },
]
SAME_STEP = [
    {
        "observations": [0, 1, 2, 10, 20],
        "flags": [0, 0, T, E],
        "rewards": [1, 2, 3, 101],
        "finals": [3],
        "returns": [6, 101],
        "lengths": [3, 1],
    },
    {
        "observations": [20, 21, 30, 31, 32],
        "flags": [0, T, 0, 0],
        "rewards": [201, 202, 301, 302],
        "finals": [22],
        "returns": [403],
        "lengths": [2],
    },
    {
        "observations": [32, 33, 40, 41, 42],
        "flags": [0, E, 0, 0],
        "rewards": [303, 304, 401, 402],
        "returns": [1210],
        "lengths": [4],
    },
    {
        "observations": [42, 50, 60, 61, 70],
        "flags": [T, E, 0, T],
        "rewards": [403, 501, 601, 602],
        "finals": [43, 62],
        "returns": [1206, 501, 1203],
        "lengths": [3, 1, 2],
    },
]
MODES = [
    (AutoresetMode.NEXT_STEP, NEXT_STEP),
    (AutoresetMode.SAME_STEP, SAME_STEP),
    (AutoresetMode.DISABLED, SAME_STEP),
]


def rows(batch, name):
    values, offsets = batch.ragged(name)
    return [values[begin:end].tolist() for begin, end in pairwise(offsets)]


def fixed(batch, name):
    return batch.numpy(name).reshape(len(batch), -1).tolist()


@pytest.mark.parametrize(("mode", "expected"), MODES)
def test_every_slot_of_four_unrolls(mode, expected, vectorised, make_rollout, echo):
    rollout = make_rollout(env_fn=vectorised(mode, "3T 1E 2T 4E"), num_envs=1, unroll_length=4)
    for version, slots in enumerate(expected):
        batch = rollout.collect(echo, version)
        assert fixed(batch, "observations") == [slots["observations"]]
        assert fixed(batch, "flags") == [slots["flags"]]
        assert fixed(batch, "rewards") == [slots["rewards"]]
        assert rows(batch, "final_observations") == [slots.get("finals", [])]
        assert rows(batch, "episode_returns") == [slots["returns"]]
        assert rows(batch, "episode_lengths") == [slots["lengths"]]
        assert batch.min_version.tolist() == batch.numpy("max_version").tolist() == [version]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_actions_and_logprobs_belong_to_their_observation(mode, vectorised, make_rollout, echo):
    rollout = make_rollout(env_fn=vectorised(mode, "3T 1E", "1T 2E"), num_envs=2, unroll_length=5)
    for _ in range(3):
        batch = rollout.collect(echo, 0)
        observations = batch.numpy("observations")[:, :-1, 0]
        assert batch.numpy("actions").dtype == np.int32
        np.testing.assert_array_equal(batch.numpy("actions"), observations % 7)
        np.testing.assert_array_equal(batch.numpy("logprobs"), -observations / np.float32(1000))


@pytest.mark.parametrize("mode", AutoresetMode)
def test_actions_reach_their_environment(mode, door, counting_env, make_rollout, echo):
    envs = []

    def make(num_envs):
        envs[:] = [counting_env("2T 3E", 1000 * i) for i in range(num_envs)]
        return gym.vector.SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=mode)

    rollout = make_rollout(env_fn=door(make), num_envs=2, unroll_length=6)
    batch = rollout.collect(echo, 0)
    for env, actions, flags in zip(envs, batch.numpy("actions"), batch.numpy("flags"), strict=True):
        assert env.actions == actions[flags != R].tolist()


def test_environments_keep_to_their_rows(vectorised, make_rollout, echo):
    env_fn = vectorised(AutoresetMode.SAME_STEP, "1T", "9E", "2T")
    batch = make_rollout(env_fn=env_fn, num_envs=3, unroll_length=4).collect(echo, 0)
    assert fixed(batch, "observations") == [
        [0, 10, 20, 30, 40],
        [1000, 1001, 1002, 1003, 1004],
        [2000, 2001, 2010, 2011, 2020],
    ]
    assert rows(batch, "final_observations") == [[1, 11, 21, 31], [], [2002, 2012]]
    assert rows(batch, "episode_returns") == [[1, 101, 201, 301], [], [3, 203]]
    assert rows(batch, "episode_lengths") == [[1, 1, 1, 1], [], [2, 2]]


@pytest.mark.parametrize("end", ["1E", "1T"])
def test_episodes_of_one_step_in_next_step_mode(end, vectorised, make_rollout, echo):
    rollout = make_rollout(env_fn=vectorised(AutoresetMode.NEXT_STEP, end), num_envs=1, unroll_length=3)
    done = E if end == "1E" else T
    first, second = rollout.collect(echo, 0), rollout.collect(echo, 0)
    assert fixed(first, "flags") == [[done, R, done]]
    assert fixed(first, "observations") == [[0, 1, 10, 11]]
    assert fixed(second, "flags") == [[R, done, R]]
    assert fixed(second, "observations") == [[11, 20, 21, 30]]
    assert rows(first, "episode_returns") == [[1, 101]]
    assert rows(second, "episode_returns") == [[201]]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("end", ["1E", "1T"])
def test_episodes_of_one_step_in_same_step_mode(mode, end, vectorised, make_rollout, echo):
    batch = make_rollout(env_fn=vectorised(mode, end), num_envs=1, unroll_length=3).collect(echo, 0)
    assert fixed(batch, "flags") == [[E if end == "1E" else T] * 3]
    assert fixed(batch, "observations") == [[0, 10, 20, 30]]
    assert rows(batch, "final_observations") == [[] if end == "1E" else [1, 11, 21]]
    assert rows(batch, "episode_lengths") == [[1, 1, 1]]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_terminated_and_truncated_at_once_counts_as_terminated(mode, vectorised, make_rollout, echo):
    batch = make_rollout(env_fn=vectorised(mode, "2B"), num_envs=1, unroll_length=2).collect(echo, 0)
    assert fixed(batch, "flags") == [[0, E]]
    assert rows(batch, "final_observations") == [[]]


@pytest.mark.parametrize("shape", [{"num_envs": 1, "unroll_length": 4}, {"num_envs": 3, "unroll_length": 1}])
def test_a_batch_outlives_the_next_unroll(shape, vectorised, make_rollout, echo):
    rollout = make_rollout(env_fn=vectorised(AutoresetMode.SAME_STEP, "2T"), **shape)
    batch = rollout.collect(echo, 0)
    before = batch.data.to_pydict()
    rollout.collect(echo, 1)
    assert batch.data.to_pydict() == before


def test_a_single_environment_is_vectorised_in_next_step_mode(door, counting_env, make_rollout, echo):
    batch = make_rollout(env_fn=door(counting_env), num_envs=2, unroll_length=4).collect(echo, 0)
    assert fixed(batch, "observations") == [NEXT_STEP[0]["observations"]] * 2


def test_frame_skip_sums_rewards_and_stops_at_the_end(door, counting_env, make_rollout, echo):
    rollout = make_rollout(
        env_fn=door(counting_env), env_kwargs={"plan": "5T"}, frame_skip=2, num_envs=1, unroll_length=5
    )
    batch = rollout.collect(echo, 0)
    assert fixed(batch, "observations") == [[0, 2, 4, 5, 10, 12]]
    assert fixed(batch, "rewards") == [[1 + 2, 3 + 4, 5, 0, 101 + 102]]
    assert fixed(batch, "flags") == [[0, 0, T, R, 0]]
    assert rows(batch, "episode_returns") == [[15]]
    assert rows(batch, "episode_lengths") == [[3]]


def test_discrete_actions_begin_at_start(door, counting_env, make_rollout, constant):
    made = []

    def make():
        made.append(counting_env())
        made[-1].action_space = gym.spaces.Discrete(3, start=-1)
        return made[-1]

    batch = make_rollout(env_fn=door(make), num_envs=1, unroll_length=2).collect(constant(2), 0)
    assert fixed(batch, "actions") == [[2, 2]]
    assert made[-1].actions == [1, 1]


def test_box_actions_are_recorded_as_sampled_and_clipped_for_the_environment(
    door, counting_env, make_rollout, constant
):
    made = []

    def make():
        made.append(counting_env())
        low = np.array([[-1, -np.inf]], np.float32)
        made[-1].action_space = gym.spaces.Box(low, np.array([[1, np.inf]], np.float32))
        return made[-1]

    batch = make_rollout(env_fn=door(make), num_envs=1, unroll_length=1).collect(constant([3.5, 99.0]), 0)
    assert batch.numpy("actions").tolist() == [[[3.5, 99.0]]]
    assert batch.numpy("actions").dtype == np.float32
    (action,) = made[-1].actions
    assert action.tolist() == [[1.0, 99.0]]
    assert action.dtype == np.float32


def test_images_stay_bytes(door, counting_env, make_rollout, echo):
    class ImageEnv(counting_env):
        def __init__(self):
            super().__init__()
            self.observation_space = gym.spaces.Box(0, 255, (4, 3, 2), np.uint8)

        def observation(self):
            return np.full((4, 3, 2), 10 * self.episode + self.count, np.uint8)

    batch = make_rollout(env_fn=door(ImageEnv), num_envs=2, unroll_length=3).collect(echo, 0)
    images = batch.numpy("observations")
    assert images.dtype == np.uint8
    assert images.shape == (2, 4, 4, 3, 2)
    assert images[1, :, 3, 2, 1].tolist() == [0, 1, 2, 3]


def test_discrete_observations_become_one_hot(door, counting_env, make_rollout, echo):
    class PlaceEnv(counting_env):
        def __init__(self):
            super().__init__("2E")
            self.observation_space = gym.spaces.Discrete(3, start=5)

        def observation(self):
            return 5 + self.count

    batch = make_rollout(env_fn=door(PlaceEnv), num_envs=1, unroll_length=2).collect(echo, 0)
    assert batch.numpy("observations").tolist() == [[[1, 0, 0], [0, 1, 0], [0, 0, 1]]]


def test_cartpole_uses_its_vector_entry_point_and_repeats_with_its_seed(make_rollout):
    def play(seed):
        rollout = make_rollout(seed=seed, env_id="CartPole-v1", num_envs=3, unroll_length=40)
        generator_free = type("Random", (), {"act": staticmethod(random_actions)})()
        return [rollout.collect(generator_free, 0).data.drop_columns(["finished_at_ns"]) for _ in range(2)]

    assert play(5) == play(5)
    assert play(5) != play(6)


def random_actions(observations, generator):
    actions = torch.randint(0, 2, (len(observations),), generator=generator)
    return actions, torch.full((len(observations),), -0.6931)


def test_global_random_states_are_left_alone(make_rollout):
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    policy = type("Random", (), {"act": staticmethod(random_actions)})()
    make_rollout(env_id="CartPole-v1", num_envs=2, unroll_length=4).collect(policy, 0)
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
