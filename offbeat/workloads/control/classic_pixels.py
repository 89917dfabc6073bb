"""A classic environment seen through its own rendering: small grey frames, a few of them stacked.

For the `module:function` door: env_fn `offbeat.workloads.control.classic_pixels:make`.

Env (+ FrameSkip) ──> render, RGB [H, W, 3] ──> crop rows, mean of blocks, invert [h, w] ──> last frames [h, w, F]
"""

import os
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from offbeat.errors import ConfigError
from offbeat.workloads.control.wrappers import FrameSkip

NDArray = np.ndarray[Any, Any]


class PixelObservation(gym.Wrapper[Any, Any, Any, Any]):
    """Observations are the last `frames` rendered frames, oldest first; an episode begins with copies of one."""

    def __init__(self, env: gym.Env[Any, Any], *, rows: Sequence[int], block: int, frames: int) -> None:
        super().__init__(env)
        self._rows, self._block = slice(*rows), block
        self._stack: NDArray = np.zeros((0, 0, frames), np.uint8)
        env.reset(seed=0)
        shape = (*self._frame().shape, frames)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray, dict[str, Any]]:
        """Begin an episode."""
        _, info = self.env.reset(seed=seed, options=options)
        self._stack = np.repeat(self._frame()[..., None], self._stack.shape[-1], axis=-1)
        return self._stack, info

    def step(self, action: Any) -> tuple[NDArray, Any, bool, bool, dict[str, Any]]:
        """Step and take one more frame."""
        _, reward, terminated, truncated, info = self.env.step(action)
        self._stack = np.concatenate([self._stack[..., 1:], self._frame()[..., None]], axis=-1)
        return self._stack, reward, terminated, truncated, info

    def _frame(self) -> NDArray:
        image = np.asarray(self.env.render())[self._rows]
        height, width, block = image.shape[0] // self._block, image.shape[1] // self._block, self._block
        image = np.ascontiguousarray(image[: height * block, : width * block])
        # Rows first: that sum runs along whole lines of memory.
        lines = image.reshape(height, block, -1).sum(axis=1, dtype=np.uint32)
        totals = lines.reshape(height, width, 3 * block).sum(axis=2)
        # Classic environments draw dark on white; nothing to see should be 0.
        inverted: NDArray = 255 - totals // (3 * block * block)
        return inverted.astype(np.uint8)


def make(
    env_id: str = "CartPole-v1",
    *,
    screen: Sequence[int] | None = None,
    rows: Sequence[int] = (0, 400),
    block: int = 8,
    frames: int = 3,
    repeat: int = 1,
    **kwargs: Any,
) -> gym.Env[Any, Any]:
    """A classic environment with images [h, w, frames] for observations.

    screen: width and height it draws in, where the environment lets them be set (CartPole, MountainCar). rows: first
    and last line of the picture to keep. block: picture elements, squared, that make one pixel. repeat: times each
    action is taken per frame (rewards are summed; frames between are not drawn). kwargs: for the environment itself.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures are read, no window is opened
    env: gym.Env[Any, Any] = gym.make(env_id, render_mode="rgb_array", disable_env_checker=True, **kwargs)
    if screen is not None:
        _set_screen(env, *screen)
    if repeat > 1:
        env = FrameSkip(env, repeat)
    return PixelObservation(env, rows=rows, block=block, frames=frames)


def _set_screen(env: gym.Env[Any, Any], width: int, height: int) -> None:
    if not hasattr(env.unwrapped, "screen_width"):
        raise ConfigError(f"{env.unwrapped} draws in a size of its own; leave out `screen`")
    env.unwrapped.screen_width, env.unwrapped.screen_height = width, height  # type: ignore[attr-defined]
