"""Replay: the steps of a finished or interrupted run once more, compared digest by digest.

The same code as resume (`train_step` on the plan's rows), started from an older checkpoint, writing nothing.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from offbeat.algorithms.determinism import make_deterministic
from offbeat.errors import CheckpointError, ConfigError
from offbeat.ledger import Outcome, PlanView, Resolved
from offbeat.log import Log
from offbeat.runs import Run
from offbeat.trainer.checkpoint import newest_valid
from offbeat.trainer.intake import fetch
from offbeat.trainer.repeat import Divergence, divergence, train_step
from offbeat.workloads import Learner, Workload, open_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay found. steps: compared with the ledger; unrecorded: repeated, but never finished before."""

    first: int
    last: int
    started_from: int
    steps: int
    unrecorded: int
    divergences: tuple[Divergence, ...]


def replay(
    run: Run, *, first: int | None = None, last: int | None = None, on_step: Callable[[int], None] = lambda step: None
) -> ReplayReport:
    """Repeat steps `first` to `last` (default: every one that the log still holds) and compare parameter digests.

    Starts from the newest valid checkpoint before `first`, or from step 0. Raises ConfigError for steps that the plan
    does not hold, RecordCorrupt or PositionOutOfRange when their trajectories are gone.
    """
    make_deterministic(run.config.training.torch_threads)
    log = run.open_log()
    try:
        view = PlanView().advance(log)
        begin, end = _bounds(view, first, last)
        workload = open_workload(run.config, base=run.base)
        with closing(workload.make_learner()) as learner:
            repetition = _Repetition(log=log, workload=workload, learner=learner, view=view)
            return repetition.run(_start(run, learner, begin), begin, end, on_step)
    finally:
        log.close()


def _bounds(view: PlanView, first: int | None, last: int | None) -> tuple[int, int]:
    known = max(view.outcomes, default=0)
    begin, end = first or 1, last or known
    if not known:
        raise ConfigError("replay: this run has not finished a step yet; there is nothing to repeat")
    if not 1 <= begin <= end <= known:
        raise ConfigError(f"replay: got steps {begin} to {end}, expected steps within 1 to {known}, which are finished")
    return begin, end


def _start(run: Run, learner: Learner, begin: int) -> Resolved:
    checkpoint = newest_valid(run.checkpoints, at_most=begin - 1)
    if checkpoint is None or checkpoint.step == 0:
        return Resolved()
    learner.load(checkpoint.folder)
    return checkpoint.resolved


@dataclass(slots=True, kw_only=True)
class _Repetition:
    """One replay in progress."""

    log: Log
    workload: Workload
    learner: Learner
    view: PlanView

    def run(self, start: Resolved, first: int, last: int, on_step: Callable[[int], None]) -> ReplayReport:
        differences: list[Divergence] = []
        compared = unrecorded = 0
        for step in range(start.step + 1, last + 1):
            outcome = self._train(step)
            recorded = self.view.first_outcomes.get(step)
            if step >= first:
                compared += recorded is not None
                unrecorded += recorded is None
                difference = divergence(outcome, recorded)
                differences += [difference] if difference else []
            on_step(step)
        return ReplayReport(
            first=first,
            last=last,
            started_from=start.step,
            steps=compared,
            unrecorded=unrecorded,
            divergences=tuple(differences),
        )

    def _train(self, step: int) -> Outcome:
        planned = self.view.steps.get(step)
        if planned is None:
            raise CheckpointError(f"the plan on the log does not hold step {step}; replay from a later step")
        row, _ = planned
        batch = fetch(self.log, row.segments, self.workload.schema)
        return train_step(self.learner, row, batch, epoch=row.epoch)
