"""Greedy episodes on fixed seeds.

Episode i is played by an environment of its own, reset with `seed + i`, so it depends on nothing that runs beside it.
The policy always sees WIDTH rows, episode i in row i % WIDTH: how a matrix product rounds may depend on its shape, and
so the last bit of a score must not depend on how many episodes were asked for or how many have ended.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offbeat.config import ControlConfig
from offbeat.errors import EvaluationError, WorkloadError
from offbeat.workloads.base import Scores
from offbeat.workloads.control.columns import Spaces
from offbeat.workloads.control.environment import make_env, name_of
from offbeat.workloads.control.spaces import ActionDecoder, ObservationEncoder

if TYPE_CHECKING:
    from offbeat.workloads.control.policy import ActorCritic

NDArray = np.ndarray[Any, Any]

WIDTH = 128


def evaluate_policy(
    config: ControlConfig,
    spaces: Spaces,
    policy: "ActorCritic",
    *,
    num_episodes: int,
    seed: int,
    max_episode_steps: int,
) -> Scores:
    """Returns of greedy episodes on `seed`, `seed + 1`, ..., each cut after `max_episode_steps` of the policy's steps.

    Raises EvaluationError when an environment raises or returns what it must not.
    """
    seeds = range(seed, seed + num_episodes)
    played = [
        _Episodes(config, spaces, seeds[at : at + WIDTH]).play(policy, max_episode_steps)
        for at in range(0, num_episodes, WIDTH)
    ]
    returns, lengths = (np.concatenate(part) for part in zip(*played, strict=True))
    return Scores(name="return", seeds=seeds, values=returns, extras={"length_mean": float(lengths.mean())})


class _Episodes:
    """At most WIDTH episodes side by side, one fresh environment each."""

    def __init__(self, config: ControlConfig, spaces: Spaces, seeds: range) -> None:
        self._name, self._seeds = name_of(config), seeds
        self._envs = [make_env(config) for _ in seeds]
        self._observations = np.zeros((WIDTH, *spaces.observation_shape), spaces.observation_dtype)
        self._encoder = ObservationEncoder(self._envs[0].observation_space, spaces)
        self._decode = ActionDecoder(self._envs[0].action_space, spaces.action)
        self._returns = np.zeros(len(seeds))
        self._lengths = np.zeros(len(seeds), np.int64)

    def play(self, policy: "ActorCritic", max_steps: int) -> tuple[NDArray, NDArray]:
        """Returns float64 and lengths int64, one per seed."""
        try:
            return self._play(policy, max_steps)
        finally:
            for env in self._envs:
                env.close()

    def _play(self, policy: "ActorCritic", max_steps: int) -> tuple[NDArray, NDArray]:
        for row, seed in enumerate(self._seeds):
            try:
                self._encoder.write([self._envs[row].reset(seed=seed)[0]], self._observations[row : row + 1])
            except Exception as error:
                raise self._failure(row, error) from error
        running = list(range(len(self._envs)))
        tensor = torch.from_numpy(self._observations)
        for _ in range(max_steps):
            if not running:
                break
            actions = self._decode(policy.greedy(tensor).numpy())
            running = [row for row in running if not self._step(row, actions[row])]
        return self._returns, self._lengths

    def _step(self, row: int, action: Any) -> bool:
        """Step one episode; whether it has ended."""
        try:
            observation, reward, terminated, truncated, _ = self._envs[row].step(action)
            if not math.isfinite(reward):
                raise WorkloadError(f"got reward {reward}, expected a finite number")
            self._encoder.write([observation], self._observations[row : row + 1])
        except Exception as error:
            raise self._failure(row, error) from error
        self._returns[row] += float(reward)
        self._lengths[row] += 1
        return bool(terminated or truncated)

    def _failure(self, row: int, error: Exception) -> EvaluationError:
        where = f"{self._name}, seed {self._seeds[row]}, step {self._lengths[row]}"
        what = str(error) if isinstance(error, WorkloadError) else f"{type(error).__name__}: {error}"
        return EvaluationError(f"{where}: {what}")
