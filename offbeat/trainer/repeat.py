"""One step of training, and the comparison with what the ledger says of it: shared by training, resume and replay."""

import time
from dataclasses import dataclass

from offbeat.ledger import Outcome, Resolved, StepRow
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads import Learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """A repeated step whose parameters differ from those of its first run."""

    step: int
    expected: str
    got: str

    def __str__(self) -> str:
        return f"step {self.step}: parameters are {self.got}, the ledger says {self.expected}"


def train_step(learner: Learner, row: StepRow, batch: TrajectoryBatch, *, epoch: int) -> Outcome:
    """Do exactly what the row says. The outcome depends on the learner's state, the batch and the row's seed alone."""
    metrics = learner.step(batch, seed=row.seed, version=row.version_in)
    return Outcome(
        epoch=epoch,
        step=row.step,
        version_in=row.version_in,
        version_out=row.version_out,
        digest=learner.digest(),
        metrics=metrics,
        finished_at_ns=time.time_ns(),
    )


def divergence(outcome: Outcome, recorded: Outcome | None) -> Divergence | None:
    """How a repeated step differs from its record; None when it does not, or there is none."""
    if recorded is None or recorded.digest == outcome.digest:
        return None
    return Divergence(step=outcome.step, expected=recorded.digest, got=outcome.digest)


def check_digest(learner: Learner, expected: str, state: Resolved) -> Divergence | None:
    """Whether a loaded learner is bit for bit the one that was saved."""
    got = learner.digest()
    return None if got == expected else Divergence(step=state.step, expected=expected, got=got)
