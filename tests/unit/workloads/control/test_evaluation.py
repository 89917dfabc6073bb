"""Greedy episodes: scores worked out by hand, and scores that depend on nothing but policy and seed."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from offbeat.config import ControlConfig, PolicyConfig
from offbeat.errors import EvaluationError
from offbeat.workloads.control.environment import probe_spaces
from offbeat.workloads.control.evaluation import evaluate_policy
from offbeat.workloads.control.policy import make_actor_critic


class SeededEnv(gym.Env):
    """An episode of as many steps as its seed; each pays the action's number."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(9)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = seed
        return np.float32([self.left]), {}

    def step(self, action):
        self.left -= 1
        return np.float32([self.left]), float(action), self.left == 0, False, {}


def evaluate(policy, *, num_episodes, seed=0, max_episode_steps=10_000, **keys):
    config = ControlConfig(**keys)
    return evaluate_policy(
        config, probe_spaces(config), policy, num_episodes=num_episodes, seed=seed, max_episode_steps=max_episode_steps
    )


def test_each_seed_plays_one_episode(door, constant):
    scores = evaluate(constant(2), num_episodes=4, seed=3, env_fn=door(SeededEnv))
    assert scores.name == "return"
    assert list(scores.seeds) == [3, 4, 5, 6]
    assert scores.values.dtype == np.float64
    assert scores.values.tolist() == [6, 8, 10, 12]
    assert scores.extras == {"length_mean": 4.5}


def test_an_endless_episode_is_cut(door, constant):
    scores = evaluate(constant(1), num_episodes=3, seed=4, max_episode_steps=5, env_fn=door(SeededEnv))
    assert scores.values.tolist() == [4, 5, 5]


def test_the_policy_sees_each_episodes_own_observation(door, echo):
    # With 4, then 3, ... steps left the echo pays 4 + 3 + 2 + 1.
    assert evaluate(echo, num_episodes=2, seed=4, env_fn=door(SeededEnv)).values.tolist() == [10, 15]


def test_frame_skip_is_honoured(door, constant):
    scores = evaluate(constant(1), num_episodes=2, seed=5, frame_skip=2, env_fn=door(SeededEnv))
    assert scores.values.tolist() == [5, 6]
    assert scores.extras == {"length_mean": 3}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_environment_behind_the_door_is_played_alone(mode, vectorised, constant):
    scores = evaluate(constant(0), num_episodes=3, env_fn=vectorised(mode, "4E"))
    assert scores.values.tolist() == [10, 10, 10]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_scores_do_not_depend_on_how_many_episodes_run(env_id):
    spaces = probe_spaces(ControlConfig(env_id=env_id))
    policy = make_actor_critic(PolicyConfig(hidden_sizes=(16,)), spaces, normalize=False, seed=1)
    few, many = (
        evaluate(policy, num_episodes=count, seed=7, max_episode_steps=60, env_id=env_id) for count in (5, 131)
    )
    again = evaluate(policy, num_episodes=5, seed=7, max_episode_steps=60, env_id=env_id)
    assert few.values.tobytes() == again.values.tobytes() == many.values[:5].tobytes()
    assert len(set(many.values.tolist())) > 1


def test_global_random_states_are_left_alone(constant):
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    evaluate(constant(0), num_episodes=2, env_id="CartPole-v1")
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def wrong(**changes):
    class Wrong(SeededEnv):
        def step(self, action):
            result = dict(
                zip(("observation", "reward", "terminated", "truncated", "info"), super().step(action), strict=True)
            )
            return tuple((result | (changes if self.left == 2 else {})).values())

    return Wrong


def test_what_must_not_be_returned_is_named_with_seed_and_step(door, constant):
    where = "behind_the_door:make, seed 4, step 1: "
    with pytest.raises(EvaluationError, match=where + "got reward nan"):
        evaluate(constant(0), num_episodes=1, seed=4, env_fn=door(wrong(reward=float("nan"))))
    with pytest.raises(EvaluationError, match=where + r"got observation \[nan\]"):
        evaluate(constant(0), num_episodes=1, seed=4, env_fn=door(wrong(observation=np.float32([np.nan]))))
    with pytest.raises(EvaluationError, match=where + "got observations float32"):
        evaluate(constant(0), num_episodes=1, seed=4, env_fn=door(wrong(observation=np.float32([1, 2]))))


def test_an_environment_that_raises_is_named_with_seed_and_step(door, constant):
    class Raising(SeededEnv):
        def step(self, action):
            raise ZeroDivisionError("no gravity")

    with pytest.raises(EvaluationError, match="seed 1, step 0: ZeroDivisionError: no gravity"):
        evaluate(constant(0), num_episodes=1, seed=1, env_fn=door(Raising))
