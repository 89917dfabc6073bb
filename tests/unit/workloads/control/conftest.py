"""Tiny environments that say where they are: observation 10 * episode + step, reward 100 * episode + step."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from offbeat.config import ControlConfig
from offbeat.workloads.control.columns import control_schema
from offbeat.workloads.control.environment import probe_spaces
from offbeat.workloads.control.rollout import ControlRollout


class CountingEnv(gym.Env):
    """Episodes whose lengths and ends ('T' truncated, 'E' terminated, 'B' both) follow a plan, again and again."""

    def __init__(self, plan: str = "3T 1E 2T 4E", offset: float = 0) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gym.spaces.Discrete(7)
        self.plan, self.offset = plan.split(), offset
        self.episode, self.count, self.over, self.actions = -1, 0, True, []

    def observation(self) -> np.ndarray:
        return np.array([self.offset + 10 * self.episode + self.count], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count, self.over = self.episode + 1, 0, False
        return self.observation(), {}

    def step(self, action):
        assert not self.over, "stepped after the end"
        self.actions.append(action)
        self.count += 1
        length, end = self.plan[self.episode % len(self.plan)]
        self.over = self.count >= int(length)
        terminated, truncated = self.over and end in "EB", self.over and end in "TB"
        return self.observation(), float(100 * self.episode + self.count), terminated, truncated, {}


class Echo:
    """A policy whose action and log-prob tell which observation it saw."""

    def act(self, observations: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        first = observations.reshape(len(observations), -1)[:, 0].float()
        return first.long() % 7, -first / 1000

    def greedy(self, observations: torch.Tensor) -> torch.Tensor:
        return self.act(observations, torch.Generator())[0]


class Constant:
    """A policy that always does the same."""

    def __init__(self, action: Any) -> None:
        self.action = torch.as_tensor(action)

    def act(self, observations: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.stack([self.action] * len(observations)), torch.full((len(observations),), -0.5)

    def greedy(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.action] * len(observations))


@pytest.fixture
def counting_env() -> type[CountingEnv]:
    return CountingEnv


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def constant() -> type[Constant]:
    return Constant


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], str]:
    """Put a function behind the `module:function` door; returns its path."""

    def put(function: Callable[..., Any]) -> str:
        module = ModuleType("behind_the_door")
        module.make = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "behind_the_door", module)
        return "behind_the_door:make"

    return put


@pytest.fixture
def vectorised(door: Callable[..., str]) -> Callable[..., str]:
    """Counting environments behind the door as a vector environment of a given autoreset mode, one per plan."""

    def put(mode: Any, *plans: str) -> str:
        def make(num_envs: int) -> SyncVectorEnv:
            makers = [lambda i=i: CountingEnv(plans[i % len(plans)], 1000 * i) for i in range(num_envs)]
            return SyncVectorEnv(makers, autoreset_mode=mode, copy=False)

        return door(make)

    return put


@pytest.fixture
def make_rollout() -> Iterator[Callable[..., ControlRollout]]:
    """Rollouts of a ControlConfig's keys, closed at the end."""
    made = []

    def make(seed: int = 0, **keys: Any) -> ControlRollout:
        config = ControlConfig(**keys)
        spaces = probe_spaces(config)
        schema = control_schema(
            observation_shape=spaces.observation_shape,
            observation_dtype=spaces.observation_dtype,
            action=spaces.action,
            unroll_length=config.unroll_length,
        )
        made.append(ControlRollout(config, spaces, schema, seed=seed))
        return made[-1]

    yield make
    for rollout in made:
        rollout.close()
