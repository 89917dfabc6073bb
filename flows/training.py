"""The training part of a lifecycle: generators and trainer side by side until the last step, then none of them."""

import threading
import time
from collections.abc import Hashable
from typing import Any

from prefect import Flow

from flows.generator import generator
from flows.launchers import DeploymentLauncher, ProcessLauncher
from flows.supervisor import POLL_S, TRAINER, Progress, Supervisor
from flows.trainer import trainer
from flows.watch import StopWatch, stopped_by_signals
from offbeat.config.models import LauncherConfig
from offbeat.errors import RunCancelled, StoreError
from offbeat.runs import Run, read_status
from offbeat.store import Store

AnyLauncher = ProcessLauncher | DeploymentLauncher

PROGRESS_INTERVAL_S = 1.0


def make_launcher(run: Run) -> AnyLauncher:
    """The launcher that the configuration names."""

    def entry(role: str) -> tuple[Flow[..., Any], dict[str, Any]]:
        if role == TRAINER:
            return trainer, {"run": str(run.folder)}
        return generator, {"run": str(run.folder), "index": int(role.removeprefix("generator-"))}

    return ProcessLauncher(run, entry) if run.config.launcher.kind == "process" else DeploymentLauncher(run, entry)


def roles_of(run: Run) -> list[str]:
    """Every child of the run. The trainer comes first: it takes longest to begin, and the others wait for it."""
    return [TRAINER, *(f"generator-{index}" for index in range(run.config.generator.num_generators))]


def train(run: Run, launcher: AnyLauncher, stop: threading.Event, watch: StopWatch) -> None:
    """Keep every child alive until training is done; none is left when this returns or raises.

    Raises ChildFailed when a child cannot be kept alive, RunCancelled when `stop` is set.
    """
    store = run.open_store()
    supervisor = Supervisor(roles_of(run), launcher, _limits(run), progress=ProgressReader(store).read)
    with stopped_by_signals(stop):
        try:
            while not supervisor.tick():
                if stop.wait(POLL_S):
                    raise RunCancelled(f"run {run.run_id} was stopped: {watch.reason or 'by a signal'}")
        finally:
            supervisor.stop()
            launcher.settle()
            store.close()


class ProgressReader:
    """Reads what the children say of themselves, at most once a second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read_at = float("-inf")
        self._last: Progress = {}

    def read(self) -> Progress:
        """A value by role that changes while the role makes progress.

        While the store is away nobody can say that a child stands still, so every value changes.
        """
        now = time.monotonic()
        if now - self._read_at < PROGRESS_INTERVAL_S:
            return self._last
        self._read_at = now
        try:
            self._last = {role: _mark(status) for role, status in read_status(self._store).items()}
        except StoreError:
            self._last = dict.fromkeys(self._last, now)
        return self._last


def _mark(status: dict[str, Any]) -> Hashable:
    return status.get("pid"), status.get("progress")


def _limits(run: Run) -> LauncherConfig:
    """The configured limits; nobody is late before having had the time to report three times."""
    launcher = run.config.launcher
    deadline = max(launcher.progress_deadline_s, 3 * run.config.observation.interval_s)
    return launcher.model_copy(update={"progress_deadline_s": deadline})
