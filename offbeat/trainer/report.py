"""What the trainer says of itself: metrics of every step, the HTTP endpoint, and its status in the store.

It measures, and hands the controllers what they need; it never decides, and its failures never stop training.
"""

import os
import socket
import threading
import time
from collections import deque
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from offbeat.errors import LogError
from offbeat.ledger import Outcome
from offbeat.log import Log
from offbeat.runs import Run, write_status
from offbeat.store import Store
from offbeat.telemetry import Health, StatusServer, TrainerMetrics
from offbeat.trainer.checkpoint import Checkpoint
from offbeat.trainer.feed import Feed, Measured
from offbeat.trainer.planner import Planned

# Waiting less than this before a step is hand-over, not starvation.
STARVED_S = 0.005
PUBLISH_WINDOW = 50


class TrainerReport:
    """The learner's thread calls; a thread of its own writes the status every `observation.interval_s`."""

    def __init__(self, run: Run, store: Store, log: Log, feed: Feed, *, restarts: int) -> None:
        self.metrics = TrainerMetrics()
        self.metrics.set_restarts(restarts)
        self.trouble = ""
        self._run = run
        self._store = store
        self._log = log
        self._feed = feed
        self._phase = "starting"
        self._beats = 0
        self._busy_s = self._wait_s = 0.0
        self._version_steps: dict[int, int] = {}
        self._costs: deque[tuple[float, float]] = deque(maxlen=PUBLISH_WINDOW)
        self._ages = np.zeros(0)
        self._checkpoint: Checkpoint | None = None
        self._last: Outcome | None = None
        observation = run.config.observation
        self._server = StatusServer(
            observation.host,
            observation.trainer_port,
            title=f"offbeat trainer of {run.run_id}",
            health=self._health,
            metrics=self.metrics,
            status=self.status,
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_loop, name="report", daemon=True)
        self._thread.start()

    def waiting(self) -> None:
        """No step is there yet. Rightly so, unless the log refuses to work."""
        self._phase = "waiting"
        if not self._feed.trouble:
            self._beats += 1

    def begin(self, planned: Planned) -> None:
        """A step begins now: the moment that trajectory age is measured at."""
        self._phase = "working"
        finished = planned.batch.numpy("finished_at_ns")
        self._ages = np.maximum(0.0, (time.time_ns() - finished) / 1e9)

    def end(
        self, planned: Planned, outcome: Outcome, *, waited_s: float, step_s: float, publish_s: float
    ) -> tuple[Outcome, Measured]:
        """A step is done: the outcome with everything measured, and what the controllers are to know."""
        self._beats += 1
        row = planned.row
        staleness = row.version_in - planned.batch.min_version
        self._count_time(waited_s, step_s + publish_s)
        latencies = self._drain_latencies()
        self._tell_metrics(outcome, planned, staleness, latencies, publish_s if row.publish else None)
        measured = Measured(
            starved=waited_s > STARVED_S,
            age_s=float(np.median(self._ages)),
            lag_steps=self._lag_steps(planned, int(staleness.max())),
            publish_share=self._publish_share(step_s + publish_s + waited_s, publish_s),
        )
        numbers = {
            "trajectories": len(planned.batch),
            "batch_size": row.batch_size,
            "staleness_max": int(staleness.max()),
            "staleness_mean": float(staleness.mean()),
            "trajectory_age_s_p50": float(np.percentile(self._ages, 50)),
            "trajectory_age_s_p99": float(np.percentile(self._ages, 99)),
            "data_latency_ms_p50": float(np.percentile(latencies, 50)) if latencies.size else 0.0,
            "data_latency_ms_p99": float(np.percentile(latencies, 99)) if latencies.size else 0.0,
            "busy_ratio": self._busy_s / max(1e-9, self._busy_s + self._wait_s),
            "wait_s": waited_s,
            "step_s": step_s,
            "publish_s": publish_s,
            "sync_interval_s": row.settings.get("sync_interval_s", 0.0),
        }
        self._last = replace(outcome, metrics={**outcome.metrics, **numbers})
        self.trouble = ""
        return self._last, measured

    def saved(self, checkpoint: Checkpoint) -> None:
        """A checkpoint was written."""
        self._checkpoint = checkpoint

    def checkpoint_failed(self, reason: str) -> None:
        """A checkpoint could not be written."""
        self.trouble = reason

    def status(self) -> dict[str, Any]:
        """The body of /api/v1/status, and of the status object in the store."""
        return {
            "run_id": self._run.run_id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "http": self._server.url,
            "phase": self._phase,
            "progress": self._beats,
            "updated_at_ns": time.time_ns(),
            "trouble": self._feed.trouble or self.trouble,
            "max_steps": self._run.config.training.max_steps,
            "checkpoint_step": self._checkpoint.step if self._checkpoint else None,
            **self.metrics.snapshot(),
        }

    def close(self) -> None:
        """Write the last status and free the port."""
        self._phase = "stopped"
        self._closing.set()
        self._thread.join(timeout=10)
        self._server.close()

    def _write_loop(self) -> None:
        while not self._closing.wait(self._run.config.observation.interval_s if self._beats else 0.1):
            self._write()
        self._write()

    def _write(self) -> None:
        try:
            if self._feed.intake is not None:
                self.metrics.set_log_lag(self._feed.intake.lag())
        except LogError as error:
            self.trouble = str(error)
        write_status(self._store, "trainer", self.status())

    def _health(self) -> Health:
        trouble = self._feed.trouble or self.trouble
        return Health(ok=not trouble, reason=trouble)

    def _count_time(self, waited_s: float, busy_s: float) -> None:
        # Before the first step there is no data yet: that wait is start-up, not starvation.
        if self._last is not None:
            self._wait_s += waited_s
            self.metrics.add_time(wait_s=waited_s)
        self._busy_s += busy_s
        self.metrics.add_time(busy_s=busy_s)

    def _drain_latencies(self) -> np.ndarray[Any, Any]:
        waiting = self._feed.intake.latencies_ms if self._feed.intake else deque()
        return np.array([waiting.popleft() for _ in range(len(waiting))])

    def _lag_steps(self, planned: Planned, staleness: int) -> int:
        row = planned.row
        if row.publish:
            self._version_steps[row.version_out] = row.step
            self._version_steps = {v: s for v, s in self._version_steps.items() if v > row.version_out - 1000}
        return max(0, row.step - 1 - self._version_steps.get(row.version_in - staleness, row.step - 1))

    def _publish_share(self, total_s: float, publish_s: float) -> float:
        self._costs.append((total_s, publish_s))
        return sum(cost for _, cost in self._costs) / max(1e-9, sum(total for total, _ in self._costs))

    def _tell_metrics(
        self,
        outcome: Outcome,
        planned: Planned,
        staleness: np.ndarray[Any, Any],
        latencies: np.ndarray[Any, Any],
        publish_s: float | None,
    ) -> None:
        metrics, row = self.metrics, planned.row
        metrics.observe_step(
            step=row.step,
            training_loss=outcome.metrics["training_loss"],
            samples=int(outcome.metrics["samples"]),
            trajectories=len(planned.batch),
        )
        metrics.observe_batch(age_s=self._ages, data_latency_s=latencies / 1e3, staleness=staleness)
        metrics.set_policy_version(row.version_out)
        if publish_s is not None:
            metrics.observe_weight_sync(publish_s)
        totals = asdict(row.totals)
        totals["duplicates"] = totals.pop("duplicate")
        metrics.set_account(**totals, pending=self._feed.num_pending)
