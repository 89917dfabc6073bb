"""What an environment must not do: each fault is named with environment and step, and the next unroll is fresh."""

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from offbeat.errors import WorkloadError


def rows(batch, name):
    values, offsets = batch.ragged(name)
    return [values[begin:end].tolist() for begin, end in pairwise(offsets)]


def fixed(batch, name):
    return batch.numpy(name).reshape(len(batch), -1).tolist()


class FaultyEnv(gym.Env):
    """Does something wrong at its third step, in its first life only."""

    def __init__(self, fault):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.fault, self.count = fault, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        result = (np.full(1, self.count, np.float32), 1.0, False, False, {})
        return self.fault(result) if self.count == 3 else result


def raising(result):
    raise ZeroDivisionError("no gravity")


FAULTS = {
    r"step 2: .*ZeroDivisionError: no gravity": raising,
    r"step 2: got observation \[nan\] from environment 1": lambda r: (np.full(1, np.nan, np.float32), *r[1:]),
    r"step 2: got observation \[inf\] from environment 1": lambda r: (np.full(1, np.inf, np.float32), *r[1:]),
    r"step 2: got reward nan from environment 1": lambda r: (r[0], float("nan"), *r[2:]),
    r"step 2: got reward inf from environment 1": lambda r: (r[0], 1e300, *r[2:]),
    r"step 2: step raised ValueError: not enough values": lambda r: r[:4],
    r"step 2: step raised ValueError: all input arrays": lambda r: (np.zeros(2, np.float32), *r[1:]),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_names_environment_and_step_and_the_next_unroll_is_fresh(message, door, make_rollout, constant):
    lives = []

    def make(num_envs):
        lives.append(num_envs)
        faults = [lambda result: result, FAULTS[message] if len(lives) <= 2 else lambda result: result]
        return gym.vector.SyncVectorEnv([lambda fault=fault: FaultyEnv(fault) for fault in faults[-num_envs:]])

    rollout = make_rollout(env_fn=door(make), num_envs=2, unroll_length=2)  # life 1 was the probe's
    rollout.collect(constant(1), 0)
    with pytest.raises(WorkloadError, match="behind_the_door:make, " + message):
        rollout.collect(constant(1), 0)
    batch = rollout.collect(constant(1), 1)
    assert fixed(batch, "observations") == [[0, 1, 2]] * 2
    assert len(lives) == 3


def test_an_environment_that_raises_at_reset_is_a_workload_error(door, counting_env, make_rollout, echo):
    class Unwilling(counting_env):
        def reset(self, *, seed=None, options=None):
            raise RuntimeError("no board")

    rollout = make_rollout(env_fn=door(Unwilling), num_envs=1)
    with pytest.raises(WorkloadError, match="step 0: reset raised RuntimeError: no board"):
        rollout.collect(echo, 0)


def test_an_environment_that_cannot_be_made_again_is_a_workload_error(door, make_rollout, constant):
    made = []

    def make():
        made.append(FaultyEnv(raising))
        if len(made) > 2:
            raise OSError("no more boards")
        return made[-1]

    rollout = make_rollout(env_fn=door(make), num_envs=1, unroll_length=4)
    with pytest.raises(WorkloadError, match="no gravity"):
        rollout.collect(constant(0), 0)
    with pytest.raises(WorkloadError, match=r"cannot be made again: .*no more boards"):
        rollout.collect(constant(0), 0)


class BareVectorEnv(VectorEnv):
    """A vector environment written by hand that returns what a test says."""

    def __init__(self, mode=AutoresetMode.SAME_STEP, **returned):
        self.num_envs = 2
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Box(-1, 1, (2, 1), np.float32)
        self.action_space = gym.spaces.MultiDiscrete([2, 2])
        zeros = {"observations": np.zeros((2, 1)), "rewards": np.zeros(2), "terminated": np.zeros(2, bool)}
        self.returned = {**zeros, "truncated": np.zeros(2, bool), "infos": {}, **returned}

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        return tuple(self.returned[name] for name in ("observations", "rewards", "terminated", "truncated", "infos"))


BAD_BATCHES = {
    r"got observations float64 \(2, 2\), expected numbers \(2, 1\)": {"observations": np.zeros((2, 2))},
    r"got observations object": {"observations": np.array([[None], [None]])},
    r"got rewards float64 \(2, 1\), expected numbers \(2,\)": {"rewards": np.zeros((2, 1))},
    r"got terminated bool \(1,\), expected numbers \(2,\)": {"terminated": np.zeros(1, bool)},
    r"got truncated float64 \(\)": {"truncated": 0.0},
    r"got no infos\['final_obs'\] for truncated environments \[1\]": {"truncated": np.array([False, True])},
    r"final_obs'\] for truncated environments \[1\]": {
        "truncated": np.array([False, True]),
        "infos": {"final_obs": np.zeros((2, 1)), "_final_obs": np.array([True, False])},
    },
    r"different shapes": {
        "truncated": np.array([True, True]),
        "infos": {"final_obs": [np.zeros(1), np.zeros(3)]},
    },
    r"got observation \[nan\]": {
        "truncated": np.array([True, False]),
        "infos": {"final_obs": np.array([[np.nan], [0.0]])},
    },
}


@pytest.mark.parametrize("message", BAD_BATCHES)
def test_a_vector_environment_must_return_whole_batches(message, door, make_rollout, constant):
    rollout = make_rollout(env_fn=door(lambda: BareVectorEnv(**BAD_BATCHES[message])), num_envs=2, unroll_length=2)
    with pytest.raises(WorkloadError, match=message):
        rollout.collect(constant(0), 0)


def test_final_observations_may_come_as_one_array(door, make_rollout, constant):
    infos = {"final_obs": np.array([[0.25], [0.5]])}
    bare = BareVectorEnv(truncated=np.array([False, True]), infos=infos)
    batch = make_rollout(env_fn=door(lambda: bare), num_envs=2, unroll_length=2).collect(constant(0), 0)
    assert rows(batch, "final_observations") == [[], [0.5, 0.5]]


def test_a_masked_reset_changes_only_what_it_reset(door, make_rollout, constant):
    bare = BareVectorEnv(AutoresetMode.DISABLED, observations=np.full((2, 1), 0.5), truncated=np.array([False, True]))
    bare.reset = lambda *, seed=None, options=None: (np.full((2, 1), 0.125), {})
    batch = make_rollout(env_fn=door(lambda: bare), num_envs=2, unroll_length=1).collect(constant(0), 0)
    assert fixed(batch, "observations") == [[0.125, 0.5], [0.125, 0.125]]
    assert rows(batch, "final_observations") == [[], [0.5]]
