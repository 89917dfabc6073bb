"""What a kind of work must bring: a trajectory schema, a policy, a rollout, a learner and an evaluation.

    make_policy ──> rollout.collect(policy, version) ──> TrajectoryBatch ──> learner.step(batch, seed) ──> weights()
                                                                             learner.save, load_policy ──> evaluate

Everything else (log, admission, plan, checkpoints, lifecycle) is shared and knows only these protocols.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from offbeat.trajectory import TrajectoryBatch

if TYPE_CHECKING:
    from torch import Tensor

Weights = Mapping[str, "Tensor"]


class Policy(Protocol):
    """Parameters that can act. One instance is used by one thread at a time."""

    def load_weights(self, weights: Weights) -> None:
        """Take over published parameters; raises WorkloadError when names or shapes differ."""


class Rollout(Protocol):
    """Acts with a policy and records what happened. Owned by one generator."""

    @property
    def num_trajectories(self) -> int:
        """Trajectories that admission is asked for: what the next `collect` returns, and what is begun beyond that."""

    @property
    def faults(self) -> Mapping[str, int]:
        """Rewards lost so far, by kind of fault; nothing where rewards cannot be lost."""

    def collect(
        self, policy: Policy, version: int, newest: Callable[[], tuple[int, Policy]] | None = None
    ) -> TrajectoryBatch:
        """Act until one call's worth of trajectories is complete; raises WorkloadError when the environment fails.

        newest: the newest version and its policy, for work that can take it up before the end. After
        a WorkloadError the next call starts from fresh episodes and nothing of the failed unroll is returned.
        """

    def close(self) -> None:
        """Give back environments and processes."""


class Learner(Protocol):
    """Parameters that learn. Everything it computes is a function of its state, the batch and the seed."""

    def step(self, batch: TrajectoryBatch, *, seed: int, version: int = 0) -> dict[str, float]:
        """One step on a batch; metrics hold at least `training_loss` and `samples` (environment steps or tokens).

        version: the policy version that the parameters are at, to check what is recorded of it.
        """

    def weights(self) -> Weights:
        """Parameters that generators need, as CPU tensors that later steps do not change."""

    def digest(self) -> str:
        """Digest (hex) of every parameter and optimiser value; equal digests mean bit-equal learners."""

    def save(self, folder: Path) -> None:
        """Write `policy/` (what acts, opens without the learner) and the optimiser's state as safetensors and JSON."""

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote, exactly; raises CheckpointError when it does not fit."""

    def close(self) -> None:
        """Give back the processes that it learns with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """An evaluation: one score per seed, in seed order, so that two policies compare pairwise.

    name: what the score is ('return', 'accuracy'). values: float64 [num_seeds]. extras: more means by name. samples:
    a few examples to look at, each by column.
    """

    name: str
    seeds: Sequence[int]
    values: np.ndarray[Any, np.dtype[np.float64]]
    extras: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[Mapping[str, str]] = ()


class Workload(Protocol):
    """One kind of work, set up from a run's configuration."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of its trajectories (see offbeat.trajectory)."""

    def num_samples(self, batch: TrajectoryBatch) -> int:
        """What a batch holds of the unit that speed is measured in: environment steps, or written tokens."""

    def check(self) -> str:
        """Try what it needs before anything starts, and say what is there; raises ConfigError or NotReady."""

    def prepare(self) -> Mapping[str, float]:
        """Make or fetch once, before anything starts, what learning starts from; returns what was measured of it."""

    def make_policy(self) -> Policy:
        """A fresh policy, as a generator needs it; acts only after `load_weights`."""

    def make_rollout(self, *, seed: int) -> Rollout:
        """A rollout whose randomness comes from `seed` alone."""

    def make_learner(self) -> Learner:
        """A learner at step 0; its parameters come from the run's seed alone."""

    def follow(self) -> None:
        """Be one of several trainer processes, not the first, until the first one ends.

        Raises ConfigError where that kind of work learns in one process, WorkloadError when the first one is gone.
        """

    def load_policy(self, folder: Path) -> Policy:
        """The policy that a checkpoint's `policy/` folder holds; raises CheckpointError."""

    def evaluate(self, policy: Policy, *, num_episodes: int, seed: int) -> Scores:
        """Greedy episodes on seeds `seed`, `seed + 1`, ...; raises EvaluationError."""
