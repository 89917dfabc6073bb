"""The trainer: repeat what the plan holds, then learn from what comes, and account for every step.

    newest valid checkpoint ──> learner
    plan after it           ──> feed ──> learner.step ──> digest, outcome ──> plan
                                              ├── every publish: policy version ──> publisher ──> generators
                                              └── every checkpoint_freq: checkpoint ──> uploads ──> store

Resume is no special case: a trainer always begins with the newest valid checkpoint (or step 0) and the plan.
"""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from offbeat.algorithms.determinism import make_deterministic
from offbeat.errors import CheckpointError
from offbeat.ledger import Event, Outcome, PlanView, PlanWriter, Resolved, StepRow
from offbeat.ledger.parquet import write_ledger
from offbeat.log import Log
from offbeat.log.retry import retrying
from offbeat.policy import PolicyPublisher
from offbeat.rendezvous import ServiceAddress, announce_service, mark_finished
from offbeat.runs import Run
from offbeat.service import PolicyServer
from offbeat.store import Store
from offbeat.trainer import checkpoint as checkpoints
from offbeat.trainer.admission import Admission
from offbeat.trainer.checkpoint import Checkpoint
from offbeat.trainer.feed import Feed
from offbeat.trainer.planner import Planned
from offbeat.trainer.repeat import check_digest, divergence, train_step
from offbeat.trainer.report import TrainerReport
from offbeat.trainer.uploads import Uploader
from offbeat.workloads import Learner, open_workload

logger = logging.getLogger(__name__)

TAKE_TIMEOUT_S = 0.2
UPLOAD_DEADLINE_S = 120.0


def run_trainer(run: Run, *, stop: threading.Event) -> None:
    """Train until `max_steps` are done or `stop` is set; state is kept either way.

    Raises RunLocked when another trainer works here, Fenced when a newer one has taken over, CheckpointError when the
    log and the checkpoints do not belong together.
    """
    with run.hold("trainer"), ExitStack() as stack:
        make_deterministic(run.config.training.torch_threads)
        log = run.open_log()
        stack.callback(log.close)
        store = run.open_store()
        stack.callback(store.close)
        Trainer(run, log, store, stack, stop).run()


class Trainer:
    """One life of the trainer. Everything runs in the caller's thread but feed, uploads, service and reports."""

    def __init__(self, run: Run, log: Log, store: Store, stack: ExitStack, stop: threading.Event) -> None:
        self._run = run
        self._log = log
        self._store = store
        self._stack = stack
        self._stop = stop
        self._workload = open_workload(run.config, base=run.base)
        self._learner: Learner = self._workload.make_learner()
        stack.callback(self._learner.close)
        self._view = PlanView()
        self._since_checkpoint: list[tuple[StepRow, Outcome]] = []

    def run(self) -> None:
        """The whole life."""
        start, checkpoint = self._load()
        self._writer = PlanWriter.open(self._log, resumed_step=start.step, view=self._view)
        self._state = start
        self._digest = self._learner.digest()
        self._open_parts(checkpoint)
        if checkpoint is None:
            self._save()
        self._loop()
        self._finish()

    def _load(self) -> tuple[Resolved, Checkpoint | None]:
        checkpoint = checkpoints.newest_anywhere(self._run, self._store, on_fault=logger.warning)
        self._view.advance(self._log)
        if checkpoint is None:
            return Resolved(), None
        self._learner.load(checkpoint.folder)
        state = checkpoint.resolved
        difference = check_digest(self._learner, checkpoint.state["digest"], state)
        if difference is not None:
            raise CheckpointError(f"{checkpoint.folder} does not load as it was saved: {difference}")
        if state.step and state.step not in self._view.steps:
            planned = max(self._view.steps, default=0)
            raise CheckpointError(
                f"{checkpoint.folder} is of step {state.step}, but the log's plan ends at step {planned}:"
                " the log and the checkpoints do not belong together"
            )
        return state, checkpoint

    def _open_parts(self, checkpoint: Checkpoint | None) -> None:
        config = self._run.config
        epoch = self._writer.epoch
        repeats = self._view.steps_after(self._state.step)
        self._repeated_version = self._view.resolved(self._state, finished_only=False).version
        self._admission = Admission(epoch=epoch, max_staleness=config.training.max_staleness)
        self._publisher = PolicyPublisher(self._store, epoch=epoch)
        self._stack.callback(self._publisher.close)
        self._uploader = Uploader(self._run, self._store, self._log, epoch=epoch)
        self._stack.callback(self._uploader.close)
        server = PolicyServer(
            host=config.observation.host,
            port=config.observation.service_port,
            progress=self._admission.answer,
            weights=self._publisher.get,
        )
        self._stack.callback(server.close)
        self._announce(server.address)
        self._feed = Feed(
            self._run,
            self._log,
            self._workload.schema,
            self._writer,
            start=self._state,
            repeats=repeats,
            admission=self._admission,
        )
        self._stack.callback(self._feed.close)
        self._report = TrainerReport(self._run, self._store, self._log, self._feed, restarts=epoch - 1)
        self._stack.callback(self._report.close)
        if repeats:
            logger.info("repeating %d planned steps after step %d", len(repeats), self._state.step)
        if checkpoint is not None and checkpoint.step not in checkpoints.stored_steps(self._store):
            self._uploader.submit(checkpoint)
        self._feed.start()
        if not repeats or self._state.version == self._repeated_version:
            self._publish()

    def _announce(self, address: str) -> None:
        service = ServiceAddress(address=address, epoch=self._writer.epoch)
        finished = self._state.step >= self._run.config.training.max_steps
        retrying(lambda: announce_service(self._store, service), stop=self._stop)
        retrying(lambda: mark_finished(self._store, finished), stop=self._stop)

    def _loop(self) -> None:
        waited_from = time.monotonic()
        while not self._stop.is_set() and self._state.step < self._run.config.training.max_steps:
            planned = self._feed.take(TAKE_TIMEOUT_S)
            if planned is None:
                if self._feed.ended:
                    break
                self._report.waiting()
                continue
            taken_at = time.monotonic()
            self._step(planned, waited_s=taken_at - waited_from)
            waited_from = time.monotonic()

    def _step(self, planned: Planned, *, waited_s: float) -> None:
        row = planned.row
        begun = time.monotonic()
        self._report.begin(planned)
        outcome = train_step(self._learner, row, planned.batch, epoch=self._writer.epoch)
        trained = time.monotonic()
        self._state = self._state.after(row, planned.plan_position)
        self._digest = outcome.digest
        if row.publish and row.version_out >= self._repeated_version:
            self._publish()
        published = time.monotonic()
        outcome, measured = self._report.end(
            planned, outcome, waited_s=waited_s, step_s=trained - begun, publish_s=published - trained
        )
        self._record(row, outcome)
        self._feed.finished(planned, measured)
        self._admission.advance(step=row.step, version=max(row.version_out, self._repeated_version))
        if row.step % self._run.config.strategy.checkpoint_freq == 0:
            self._save()

    def _record(self, row: StepRow, outcome: Outcome) -> None:
        difference = divergence(outcome, self._view.first_outcomes.get(row.step))
        if difference is not None:
            logger.warning("repeated step differs: %s", difference)
            event = Event(
                epoch=self._writer.epoch, step=row.step, name="divergence", detail=str(difference), at_ns=time.time_ns()
            )
            self._writer.defer(event)
        self._writer.defer(outcome)
        self._since_checkpoint.append((row, outcome))

    def _publish(self) -> None:
        self._publisher.publish(self._state.version, self._learner.weights())
        self._admission.advance(step=self._state.step, version=self._state.version)

    def _save(self) -> None:
        """Write a checkpoint of the present state; a disk that refuses costs this checkpoint, not the run."""
        retrying(self._writer.flush, stop=self._stop)
        steps = list(self._since_checkpoint)
        try:
            checkpoint = checkpoints.write(
                self._run,
                self._state,
                lambda folder: self._write_files(folder, steps),
                epoch=self._writer.epoch,
                digest=self._digest,
            )
        except CheckpointError as error:
            self._report.checkpoint_failed(str(error))
            logger.warning("%s; training goes on, the next one is tried at its time", error)
            return
        self._since_checkpoint.clear()
        self._uploader.submit(checkpoint)
        self._report.saved(checkpoint)

    def _write_files(self, folder: Path, steps: Sequence[tuple[StepRow, Outcome]]) -> None:
        self._learner.save(folder)
        write_ledger(folder / "ledger.parquet", steps)

    def _finish(self) -> None:
        """Keep the state; when training is done, say so where generators and supervisor look."""
        done = self._state.step >= self._run.config.training.max_steps
        newest = checkpoints.newest_valid(self._run.checkpoints)
        if newest is None or newest.step != self._state.step:
            self._save()
        retrying(self._writer.flush, stop=self._stop)
        if not done:
            return
        saved = checkpoints.newest_valid(self._run.checkpoints)
        if saved is None or saved.step != self._state.step:
            raise CheckpointError(f"training is done but its last checkpoint cannot be written: {self._report.trouble}")
        self._uploader.drain(UPLOAD_DEADLINE_S)
        retrying(lambda: mark_finished(self._store, True), stop=self._stop)
        self._admission.advance(step=self._state.step, version=self._state.version, finished=True)
