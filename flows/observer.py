"""Watching a training run without ever holding it up: a thread that may fail, wait and try again as it must.

every interval ──> ledger ──> MLflow (one batch)
                         └──> Prefect (progress artifact)
every quality interval ──> a sample of trajectories ──> Great Expectations
"""

import contextvars
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from flows.states import API_AWAY, impatient
from offbeat.errors import OffbeatError, RegistryError, RunCancelled
from offbeat.lifecycle.relay import MetricsRelay, open_registry
from offbeat.lifecycle.stages import check_trajectories
from offbeat.registry.tracking import RunStatus
from offbeat.runs import Run
from tasks.observe import ProgressArtifact

logger = logging.getLogger(__name__)

JOIN_S = 60.0
MACHINE_INTERVAL_S = 5.0


class Observer:
    """One run's observer. `relay` may be used by the caller once the thread has ended."""

    def __init__(self, run: Run, *, flow_run_id: str) -> None:
        self.relay = MetricsRelay(run, open_registry, tags={"flow_run_id": flow_run_id})
        self.failed_checks: tuple[str, ...] = ()
        self.num_failures = 0
        self._run = run
        self._artifact = ProgressArtifact(run.run_id, run.config.training.max_steps)
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the MLflow run, telling how; a run that is resumed continues it."""
        cancelled = isinstance(error, RunCancelled | KeyboardInterrupt)
        status: RunStatus = "FINISHED" if error is None else "KILLED" if cancelled else "FAILED"
        try:
            self.relay.finish(status)
        except RegistryError as failure:
            self._count("ending the MLflow run", failure)
        finally:
            self.relay.close()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe while the block runs, and once more at its end."""
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._observe,), name="observer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closing.set()
            thread.join(JOIN_S)

    def _observe(self) -> None:
        observation = self._run.config.observation
        check_at = time.monotonic() + observation.quality_interval_s
        with ExitStack() as stack:
            self._look()
            self._watch_machine(stack)
            while not self._closing.wait(observation.interval_s):
                self._look()
                if time.monotonic() >= check_at:
                    self._check()
                    check_at = time.monotonic() + observation.quality_interval_s
            self._look()

    def _look(self) -> None:
        self.relay.push()
        try:
            with impatient():
                self._artifact.show(self.relay.last)
        except API_AWAY as error:
            self._count("the progress artifact", error)

    def _watch_machine(self, stack: ExitStack) -> None:
        interval_s = max(MACHINE_INTERVAL_S, self._run.config.observation.interval_s)
        try:
            sampling = self.relay.registry().system_metrics(self.relay.mlflow_id(), interval_s=interval_s)
            stack.enter_context(sampling)
        except RegistryError as error:
            self._count("watching the machine", error)

    def _check(self) -> None:
        try:
            report = check_trajectories(self._run)
        except OffbeatError as error:
            self._count("the quality check", error)
            return
        if report is not None and not report.success:
            logger.warning("quality: %s", "; ".join(report.failed))
            self.failed_checks = tuple(dict.fromkeys([*self.failed_checks, *report.failed]))

    def _count(self, what: str, error: Exception) -> None:
        self.num_failures += 1
        logger.warning("%s failed (%d): %s", what, self.num_failures, error)
