"""From the ledger to MLflow, one batch an interval; MLflow may be away for as long as it likes.

log's plan ──> outcomes not yet sent ──> log_metrics ──> position moves on
                                           └─ refused: counted, sent again with the next batch
"""

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from offbeat.config import config_digest
from offbeat.errors import LogError, RegistryError
from offbeat.ledger import Outcome, read_outcomes
from offbeat.lifecycle.lineage import git_revision
from offbeat.registry import MetricRow, Registry
from offbeat.registry.tracking import RunStatus
from offbeat.runs import Run

logger = logging.getLogger(__name__)


def open_registry(run: Run) -> Registry:
    """The registry that this run's configuration names; importing MLflow takes two seconds."""
    return Registry(run.tracking_uri, experiment=run.config.registry.experiment)


def start_mlflow_run(run: Run, registry: Registry, *, tags: dict[str, str]) -> str:
    """Begin this run's MLflow run, or continue the one that its folder remembers, and return the MLflow id."""
    memory = run.folder / "mlflow.json"
    known = json.loads(memory.read_text())["run_id"] if memory.is_file() else None
    labels = {"run_id": run.run_id, "git_revision": git_revision(), "config_digest": config_digest(run.config), **tags}
    started = registry.start_run(
        run.run_id, params=_flat(run.config.model_dump(mode="json")), tags=labels, run_id=known
    )
    memory.write_text(json.dumps({"run_id": started}))
    return started


class MetricsRelay:
    """Sends the metrics of finished steps to MLflow. Several threads may call; MLflow may hold one for minutes."""

    def __init__(self, run: Run, connect: Callable[[Run], Registry], *, tags: dict[str, str]) -> None:
        self.num_failures = 0
        self.last: Outcome | None = None
        self._run = run
        self._connect = connect
        self._tags = tags
        self._log = run.open_log()
        self._position = 0
        self._waiting: list[Outcome] = []
        self._registry: Registry | None = None
        self._mlflow_id: str | None = None
        self._lock = threading.RLock()

    def push(self) -> bool:
        """Send what is new; False when MLflow or the log refused, and nothing is lost. Never ends its caller."""
        with self._lock:
            try:
                self._read()
                self.registry().log_metrics(self.mlflow_id(), [_row(outcome) for outcome in self._waiting])
            except (RegistryError, LogError) as error:
                self.num_failures += 1
                logger.warning(
                    "metrics of %d steps wait (%d failures): %s", len(self._waiting), self.num_failures, error
                )
                return False
            self._waiting.clear()
            return True

    def registry(self) -> Registry:
        """The registry, opened when it is first needed; raises RegistryError."""
        with self._lock:
            if self._registry is None:
                self._registry = self._connect(self._run)
            return self._registry

    def mlflow_id(self) -> str:
        """The MLflow run, begun or continued when it is first needed; raises RegistryError."""
        with self._lock:
            if self._mlflow_id is None:
                self._mlflow_id = start_mlflow_run(self._run, self.registry(), tags=self._tags)
            return self._mlflow_id

    def finish(self, status: RunStatus) -> None:
        """End the MLflow run, if there is one; raises RegistryError."""
        if self._registry is not None and self._mlflow_id is not None:
            self._registry.finish_run(self._mlflow_id, status)

    def close(self) -> None:
        """Give the log back."""
        with self._lock:
            self._log.close()

    def _read(self) -> None:
        outcomes, self._position = read_outcomes(self._log, self._position)
        self._waiting += outcomes
        if outcomes:
            self.last = outcomes[-1]


def _row(outcome: Outcome) -> MetricRow:
    metrics = {**outcome.metrics, "policy_version": float(outcome.version_out)}
    return outcome.step, outcome.finished_at_ns // 1_000_000, metrics


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat
