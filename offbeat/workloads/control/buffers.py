"""One unroll as it grows: buffers [T, N] written slot by slot, then cut into N trajectories.

Buffers are time-major, so that each step writes one contiguous row; a trajectory is a column of them. `to_batch` copies
once, into env-major arrays that the next unroll does not touch.
"""

import time
from typing import Any

import numpy as np
import pyarrow as pa

from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.control.columns import RESET, TERMINATED, TRUNCATED, Box, Spaces

NDArray = np.ndarray[Any, Any]


class Unroll:
    """Buffers of N environments for T steps, used again and again; each unroll begins with the last one's end."""

    def __init__(self, spaces: Spaces, *, num_envs: int, length: int) -> None:
        self.num_envs, self.length = num_envs, length
        action = (spaces.action.size,) if isinstance(spaces.action, Box) else ()
        dtype = np.float32 if isinstance(spaces.action, Box) else np.int32
        self.observations = np.zeros((length + 1, num_envs, *spaces.observation_shape), spaces.observation_dtype)
        self.actions = np.zeros((length, num_envs, *action), dtype)
        self.rewards = np.zeros((length, num_envs), np.float32)
        self.logprobs = np.zeros((length, num_envs), np.float32)
        self.terminated = np.zeros((length, num_envs), np.bool_)
        self.truncated = np.zeros((length, num_envs), np.bool_)
        self.reset = np.zeros((length, num_envs), np.bool_)
        self._finals: list[tuple[NDArray, NDArray]] = []
        self._returns_so_far = np.zeros(num_envs)
        self._lengths_so_far = np.zeros(num_envs, np.int64)

    def begin(self) -> None:
        """Carry the last observation over to a new unroll."""
        self.observations[0] = self.observations[-1]
        self._finals.clear()

    def add_finals(self, envs: NDArray, observations: NDArray) -> None:
        """Keep the true final observations [k, *shape] of the environments [k] that this slot truncated (same-step)."""
        self._finals.append((envs, observations))

    def to_batch(self, schema: pa.Schema, version: int) -> TrajectoryBatch:
        """N trajectories in fresh memory, acted by one policy version and finished now."""
        truncated = self.truncated & ~self.terminated
        flags = self.terminated * np.uint8(TERMINATED) + truncated * np.uint8(TRUNCATED) + self.reset * np.uint8(RESET)
        versions = np.full(self.num_envs, version, np.int64)
        arrays: dict[str, Any] = {
            "min_version": versions,
            "max_version": versions,
            "finished_at_ns": np.full(self.num_envs, time.time_ns(), np.int64),
            "observations": _env_major(self.observations),
            "actions": _env_major(self.actions),
            "rewards": _env_major(self.rewards),
            "logprobs": _env_major(self.logprobs),
            "flags": _env_major(flags),
            "final_observations": self._final_column(schema.field("final_observations").type),
            **self._episode_columns(schema),
        }
        return TrajectoryBatch.from_arrays(schema, arrays)

    def _final_column(self, kind: pa.DataType) -> pa.Array:
        empty = self.observations[0, :0]
        envs = np.concatenate([np.zeros(0, np.int64), *(envs for envs, _ in self._finals)])
        values = np.concatenate([empty, *(observations for _, observations in self._finals)])
        order = np.argsort(envs, kind="stable")  # keeps each environment's entries in time order
        counts = np.bincount(envs, minlength=self.num_envs) * int(np.prod(empty.shape[1:]))
        return _ragged(kind, values[order].reshape(-1), counts)

    def _episode_columns(self, schema: pa.Schema) -> dict[str, pa.Array]:
        """Returns and lengths of the episodes that ended, each the difference of running totals at two ends."""
        done = (self.terminated | self.truncated).T
        envs, slots = np.nonzero(done)  # sorted by environment, then time
        returns, self._returns_so_far = _split_at(envs, slots, self.rewards.T, self._returns_so_far)
        lengths, self._lengths_so_far = _split_at(envs, slots, ~self.reset.T, self._lengths_so_far)
        counts = done.sum(axis=1)
        return {
            "episode_returns": _ragged(schema.field("episode_returns").type, returns.astype(np.float32), counts),
            "episode_lengths": _ragged(schema.field("episode_lengths").type, lengths.astype(np.int32), counts),
        }


def _env_major(array: NDArray) -> NDArray:
    # An explicit copy: with one environment or one step the transposed view would be contiguous already, and alias.
    return np.array(array.swapaxes(0, 1), order="C", copy=True)


def _split_at(envs: NDArray, slots: NDArray, per_slot: NDArray, so_far: NDArray) -> tuple[NDArray, NDArray]:
    """Sums between ends, [num_ends], and what each row [N] has summed since its last end, given sums carried in."""
    totals = per_slot.cumsum(axis=1, dtype=so_far.dtype) + so_far[:, None]
    at_end = totals[envs, slots]
    before = np.zeros_like(at_end)
    same = envs[1:] == envs[:-1]
    before[1:][same] = at_end[:-1][same]
    last = np.zeros_like(so_far)
    last[envs] = at_end  # totals of later ends overwrite those of earlier ones
    return at_end - before, totals[:, -1] - last


def _ragged(kind: pa.DataType, values: NDArray, counts: NDArray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=kind)
