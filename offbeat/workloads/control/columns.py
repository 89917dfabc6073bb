"""Columns of a control trajectory: one unroll of T steps of one environment, and what each slot means.

Slot t holds the transition (o_t, a_t, r_t, done_t). An episode that ends at slot t = 2, in each of the two modes
(`*` marks a RESET slot, `'` the next episode):

    slot                      0    1    2    3    4    5          T = 6
    next-step   observations  o0   o1   o2   oF   o0'  o1'  o2'   oF is the ended episode's true final observation
                flags         .    .    done *    .    .          slot 3 only resets; its action was ignored
    same-step   observations  o0   o1   o2   o0'  o1'  o2'  o3'   oF goes to final_observations, if slot 2 was truncated
                flags         .    .    done .    .    .          slot 3 is the next episode's first, ordinary step

Next-step is Gymnasium's NEXT_STEP autoreset; same-step is its SAME_STEP, or DISABLED with a reset by hand.

- RESET marks a slot whose action was ignored because the environment was resetting. It is never trained on, has no
  loss, carries no other flag, and nothing flows through it.
- A slot with both done flags counts as terminated; `truncated` below means TRUNCATED and not TERMINATED.
- final_observations holds, per trajectory, either one observation per truncated slot in time order (same-step) or none
  at all (next-step): that is how the learner tells the modes apart.
- Bootstrap value of a slot: 0 if terminated; if truncated V(final observation), which is V(o_{t+1}) in next-step mode
  (also at t = T - 1) and V of the entry of final_observations in same-step mode; V(o_{t+1}) otherwise.
- Traces are cut at every done and at RESET; the last slot bootstraps from V(o_T) unless it is done.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from offbeat.trajectory import column, ragged, trajectory_schema

TERMINATED = 1
TRUNCATED = 2
RESET = 4

ObservationDtype = Literal["float32", "uint8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrete:
    """Actions 0 .. n - 1; the environment's own numbers begin at `start`, trajectories always at 0."""

    n: int
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Continuous actions of `shape`; `low` and `high` are flattened bounds, infinite where there is none.

    Trajectories hold actions flattened and as sampled; the environment's side clips them to the bounds.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """Numbers in one action (A)."""
        return math.prod(self.shape)


ActionSpec = Discrete | Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """What a policy sees and does, free of Gymnasium."""

    observation_shape: tuple[int, ...]
    observation_dtype: ObservationDtype
    action: ActionSpec


def control_schema(
    *, observation_shape: tuple[int, ...], observation_dtype: ObservationDtype, action: ActionSpec, unroll_length: int
) -> pa.Schema:
    """Schema of trajectories with `unroll_length` = T steps; the module's docstring says what the columns mean.

    observations [T + 1, *observation_shape]; actions int32 [T] or float32 [T, A]; rewards, logprobs float32 [T];
    flags uint8 [T]; final_observations, episode_returns (float32, true and unnormalised) and episode_lengths (int32)
    ragged, the last two with one entry per episode that ended inside the unroll.
    """
    length, dtype = unroll_length, pa.from_numpy_dtype(np.dtype(observation_dtype))
    floating = observation_dtype == "float32"
    return trajectory_schema(
        [
            column("observations", dtype, (length + 1, *observation_shape), finite=floating),
            _action_column(action, length),
            column("rewards", pa.float32(), (length,), finite=True),
            column("logprobs", pa.float32(), (length,), finite=True),
            column("flags", pa.uint8(), (length,)),
            ragged("final_observations", dtype, finite=floating),
            ragged("episode_returns", pa.float32()),
            ragged("episode_lengths", pa.int32()),
        ]
    )


def action_document(action: ActionSpec) -> dict[str, Any]:
    """An action space as JSON knows it: infinite bounds are null."""
    if isinstance(action, Discrete):
        return {"kind": "discrete", "n": action.n, "start": action.start}
    bounds = {
        name: [value if math.isfinite(value) else None for value in values]
        for name, values in (("low", action.low), ("high", action.high))
    }
    return {"kind": "box", "shape": list(action.shape), **bounds}


def action_from_document(document: Mapping[str, Any]) -> ActionSpec:
    """What `action_document` wrote; raises KeyError, TypeError or ValueError for anything else."""
    if document["kind"] == "discrete":
        return Discrete(n=int(document["n"]), start=int(document["start"]))
    if document["kind"] != "box":
        raise ValueError(f"action kind: got {document['kind']!r}, expected 'discrete' or 'box'")
    low = tuple(-math.inf if value is None else float(value) for value in document["low"])
    high = tuple(math.inf if value is None else float(value) for value in document["high"])
    return Box(shape=tuple(map(int, document["shape"])), low=low, high=high)


def _action_column(action: ActionSpec, length: int) -> Any:
    if isinstance(action, Discrete):
        return column("actions", pa.int32(), (length,))
    return column("actions", pa.float32(), (length, action.size), finite=True)
