"""Gymnasium's spaces as a policy sees them: which are supported, and how values cross the border.

observations   Box [n], any number type  ──> float32 [n]
               Discrete                  ──> float32 [n], one-hot
               Box uint8 [H, W (, C)]    ──> uint8, unchanged
actions        0 .. n - 1                ──> Discrete, from its own start
               [A], as sampled           ──> Box of floats, clipped, in its own shape
"""

from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from offbeat.errors import UnsupportedSpace, WorkloadError
from offbeat.workloads.control.columns import ActionSpec, Box, Discrete, Spaces

NDArray = np.ndarray[Any, Any]

OBSERVATIONS = "a flat Box (any number type), an image Box (uint8, 2-D or 3-D) or Discrete"
ACTIONS = "Discrete, or a Box of floats"


def read_spaces(observation_space: gym_spaces.Space[Any], action_space: gym_spaces.Space[Any]) -> Spaces:
    """What a policy sees and does in one environment; raises UnsupportedSpace naming what is supported."""
    action = _read_action(action_space)
    if isinstance(observation_space, gym_spaces.Discrete):
        return Spaces(observation_shape=(int(observation_space.n),), observation_dtype="float32", action=action)
    if isinstance(observation_space, gym_spaces.Box):
        shape = tuple(int(size) for size in observation_space.shape)
        if len(shape) == 1 and shape[0] > 0 and observation_space.dtype.kind in "fiub":
            return Spaces(observation_shape=shape, observation_dtype="float32", action=action)
        if len(shape) in (2, 3) and min(shape) > 0 and observation_space.dtype == np.uint8:
            return Spaces(observation_shape=shape, observation_dtype="uint8", action=action)
    raise UnsupportedSpace(f"observation space: got {observation_space}, supported are {OBSERVATIONS}{_hint()}")


def _read_action(space: gym_spaces.Space[Any]) -> ActionSpec:
    if isinstance(space, gym_spaces.Discrete):
        return Discrete(n=int(space.n), start=int(space.start))
    if isinstance(space, gym_spaces.Box) and space.dtype.kind == "f" and 0 not in space.shape:
        low, high = (tuple(float(bound) for bound in side.reshape(-1)) for side in (space.low, space.high))
        return Box(shape=tuple(int(size) for size in space.shape), low=low, high=high)
    raise UnsupportedSpace(f"action space: got {space}, supported are {ACTIONS}{_hint()}")


def _hint() -> str:
    return "; a wrapper in a workload.env_fn can turn it into one of these"


class ObservationEncoder:
    """Writes the environment's observations into rows [k, *observation_shape] of a buffer."""

    def __init__(self, space: gym_spaces.Space[Any], spaces: Spaces) -> None:
        self._discrete = isinstance(space, gym_spaces.Discrete)
        self._start = int(space.start) if isinstance(space, gym_spaces.Discrete) else 0
        self._floating = spaces.observation_dtype == "float32"
        self._raw_shape = () if self._discrete else spaces.observation_shape

    def write(self, raw: Any, out: NDArray) -> None:
        """Encode `raw` into `out`; raises WorkloadError for a wrong shape or a number that the space cannot hold."""
        got, shape = np.asarray(raw), (len(out), *self._raw_shape)
        if got.shape != shape or got.dtype.kind not in "fiub":
            raise WorkloadError(f"got observations {got.dtype} {got.shape}, expected numbers {shape}")
        if self._discrete:
            self._write_one_hot(got.astype(np.int64) - self._start, out)
            return
        np.copyto(out, got, casting="unsafe")
        if self._floating and not np.isfinite(out).all():
            which = int(np.flatnonzero(~np.isfinite(out).all(axis=1))[0])
            raise WorkloadError(
                f"got observation {got[which]} from environment {which}, expected finite float32 numbers"
            )

    def _write_one_hot(self, index: NDArray, out: NDArray) -> None:
        outside = (index < 0) | (index >= out.shape[1])
        if outside.any():
            expected = f"{self._start} .. {self._start + out.shape[1] - 1}"
            raise WorkloadError(f"got observation {index[outside][0] + self._start}, expected {expected}")
        out.fill(0)
        out[np.arange(len(out)), index] = 1


class ActionDecoder:
    """Turns a policy's actions ([N], or [N, A] as sampled) into what the environment takes."""

    def __init__(self, space: gym_spaces.Space[Any], action: ActionSpec) -> None:
        self._action = action
        self._dtype = space.dtype
        if isinstance(action, Box):
            self._low, self._high = (np.asarray(side, dtype=np.float64) for side in (action.low, action.high))

    def __call__(self, actions: NDArray) -> NDArray:
        """Fresh memory: an environment may keep or change what it is given."""
        if isinstance(self._action, Discrete):
            return np.add(actions, self._action.start, dtype=self._dtype, casting="unsafe")
        clipped = np.clip(actions, self._low, self._high).astype(self._dtype)
        return clipped.reshape(len(actions), *self._action.shape)
