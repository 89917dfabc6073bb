"""A batch of control trajectories as the learner's tensors: in fresh memory, flags taken apart.

Columns are copied into new (64-byte aligned) tensors, so a step's result depends on the trajectories and their order
alone, never on how a log record was cut or where it lay in memory.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.errors import ContractViolation
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.control.columns import RESET, TERMINATED, TRUNCATED

NDArray = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrolls:
    """N unrolls of T steps. final_observations [K, *shape] are common to all.

    weights: 1 for slots to train on, 0 for RESET. final_index: int64, which final observation follows a truncated slot
    (same-step mode), -1 elsewhere.
    """

    observations: Tensor  # [N, T + 1, *shape]
    actions: Tensor  # int64 [N, T] or float32 [N, T, A]
    rewards: Tensor  # [N, T]
    behaviour_logprobs: Tensor  # [N, T]
    terminated: Tensor  # bool [N, T]
    cuts: Tensor  # bool [N, T]: every done and RESET
    weights: Tensor  # [N, T]
    final_index: Tensor  # [N, T]
    final_observations: Tensor  # [K, *shape]

    def select(self, rows: Tensor) -> "Unrolls":
        """The unrolls `rows` (int64 [n]), copied."""
        names = [field.name for field in fields(self) if field.name != "final_observations"]
        chosen = {name: getattr(self, name).index_select(0, rows) for name in names}
        return Unrolls(**chosen, final_observations=self.final_observations)


def unrolls_of(batch: TrajectoryBatch, device: torch.device) -> Unrolls:
    """Copy a batch's columns; raises ContractViolation when final observations do not fit the truncated slots."""
    flags = batch.numpy("flags")
    reset = (flags & RESET) != 0
    terminated = ((flags & TERMINATED) != 0) & ~reset
    truncated = ((flags & TRUNCATED) != 0) & ~terminated & ~reset
    observations = batch.numpy("observations")
    final_index, final_observations = _final_observations(batch, truncated, observations.shape[2:])
    actions = batch.numpy("actions")
    arrays = {
        "observations": observations,
        "actions": actions.astype(np.int64) if actions.dtype.kind == "i" else actions,
        "rewards": batch.numpy("rewards"),
        "behaviour_logprobs": batch.numpy("logprobs"),
        "terminated": terminated,
        "cuts": terminated | truncated | reset,
        "weights": (~reset).astype(np.float32),
        "final_index": final_index,
    }
    tensors = {name: _copied(array).to(device) for name, array in arrays.items()}
    return Unrolls(**tensors, final_observations=_copied(final_observations).to(device))


def _final_observations(batch: TrajectoryBatch, truncated: NDArray, shape: tuple[int, ...]) -> tuple[NDArray, NDArray]:
    values, offsets = batch.ragged("final_observations")
    lengths, wanted = np.diff(offsets), truncated.sum(1) * int(np.prod(shape))
    wrong = np.flatnonzero((lengths != 0) & (lengths != wanted))
    if len(wrong):
        got, expected = int(lengths[wrong[0]]), int(wanted[wrong[0]])
        raise ContractViolation(
            f"final_observations of {len(wrong)} trajectories: got {got} numbers, expected {expected}"
        )
    # Truncated slots of rows that carry final observations, numbered as those are kept: by row, then time.
    carried = truncated & (lengths != 0)[:, None]
    index = np.where(carried, np.cumsum(carried).reshape(carried.shape) - 1, -1)
    return index, values.reshape(-1, *shape)


def _copied(array: NDArray) -> Tensor:
    fresh = torch.empty(array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype)
    fresh.numpy()[...] = array
    return fresh
