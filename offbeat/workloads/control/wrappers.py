"""Two adapters: one repeats actions, one plays the first environment of a vector environment alone."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv


class FrameSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action `repeat` times, sums the rewards, and stops at the episode's end."""

    def __init__(self, env: gym.Env[Any, Any], repeat: int) -> None:
        super().__init__(env)
        self._repeat = repeat

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As the environment's own `step`; observation and info are those of the last repetition."""
        total = 0.0
        for _ in range(self._repeat):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class FirstOfVector(gym.Env[Any, Any]):
    """The first environment of a vector environment, for one episode after each `reset`.

    The others are given the same action and are ignored.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self._env = env
        self._by_hand = env.metadata.get("autoreset_mode") is AutoresetMode.DISABLED
        self.metadata = env.metadata
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode whose randomness comes from `seed`."""
        super().reset(seed=seed)
        observations, _ = self._env.reset(seed=seed, options=options)
        return np.array(observations[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; with same-step autoreset the last observation is the next episode's first."""
        observations, rewards, terminated, truncated, _ = self._env.step(np.stack([action] * self._env.num_envs))
        first = np.array(observations[0]), float(rewards[0]), bool(terminated[0]), bool(truncated[0])
        self._reset_others(np.logical_or(terminated, truncated))
        return *first, {}

    def _reset_others(self, done: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        done[0] = False
        if self._by_hand and done.any():
            self._env.reset(options={"reset_mask": done})

    def close(self) -> None:
        """Close the vector environment."""
        self._env.close()
