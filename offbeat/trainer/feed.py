"""The feed: a thread that hands the learner one planned step while it prepares the next.

    repeat what the plan already holds ──> then live: poll the log ──> plan ──> write the decision ──> hand over

At most one decided step waits while another one runs, so a decision is written before its step begins and costs the
learner no waiting, and is still made from fresh data. The same thread carries outcomes to the plan.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from offbeat.ledger import PlanWriter, Resolved, StepRow
from offbeat.log import Log
from offbeat.log.retry import retrying
from offbeat.runs import Run
from offbeat.trainer.admission import Admission
from offbeat.trainer.controllers import Signals
from offbeat.trainer.intake import Intake, Item, fetch, quarantine_entry
from offbeat.trainer.planner import Planned, Planner

POLL_S = 0.004

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the learner's loop measured of its last steps, for the controllers."""

    starved: bool = False
    age_s: float = 0.0
    lag_steps: int = 0
    publish_share: float = 0.0


class Feed:
    """Planned steps, one after the other. `take` and `finished` belong to the learner's thread."""

    def __init__(
        self,
        run: Run,
        log: Log,
        schema: pa.Schema,
        writer: PlanWriter,
        *,
        start: Resolved,
        repeats: Sequence[tuple[StepRow, int]],
        admission: Admission,
    ) -> None:
        self.trouble = ""
        self.intake: Intake | None = None
        self._run = run
        self._log = log
        self._schema = schema
        self._writer = writer
        self._start = start
        self._repeats = repeats
        self._admission = admission
        self._last_step = run.config.training.max_steps
        self._changed = threading.Condition()
        self._ready: Planned | None = None
        self._unfinished = 0
        self._num_fresh = 0
        self._measured = Measured()
        self._published_at = time.monotonic()
        self._ended = False
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._body, name="feed", daemon=True)

    def start(self) -> None:
        """Begin to repeat, then to plan."""
        self._thread.start()

    def take(self, timeout_s: float) -> Planned | None:
        """The next decided step; None when there is none yet, or (see `ended`) no more will come.

        Raises what ended the feed: Fenced, RecordCorrupt, ...
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready is not None or self._ended, timeout_s)
            planned, self._ready = self._ready, None
            if planned is None and self._error is not None:
                raise self._error
            self._changed.notify_all()
            return planned

    @property
    def num_pending(self) -> int:
        """Trajectories that are read and neither trained nor dropped."""
        return self._num_fresh + self._unfinished

    @property
    def ended(self) -> bool:
        """Whether no more steps will come."""
        with self._changed:
            return self._ended and self._ready is None

    def finished(self, planned: Planned, measured: Measured) -> None:
        """The learner has finished a step."""
        with self._changed:
            self._unfinished -= len(planned.batch)
            self._measured = measured
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread; what is decided and not taken stays in the plan and is repeated by the next trainer."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _body(self) -> None:
        try:
            state = self._repeat()
            if not self._stop.is_set():
                self._live(state)
        except BaseException as error:  # noqa: BLE001 - the thread's outermost frame: `take` raises it in the learner's
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _repeat(self) -> Resolved:
        state = self._start
        for row, position in self._repeats:
            if row.step > self._last_step or not self._wait_for_slot():
                break
            batch = self._patiently(partial(fetch, self._log, row.segments, self._schema))
            self._hand_over(Planned(row=row, batch=batch, plan_position=position))
            state = state.after(row, position)
        return state

    def _live(self, state: Resolved) -> None:
        self.intake = intake = Intake(
            self._log, self._schema, run_id=self._run.run_id, cursors=state.cursors, marks=state.marks
        )
        planner = Planner(self._run.config, state, self._writer.epoch)
        shown: tuple[int, int] | None = None
        while not self._stop.is_set() and planner.step < self._last_step:
            items = self._patiently(lambda: intake.poll(planner.version))
            self._keep_quarantined(items)
            planner.offer(items)
            planned = self._plan_when_ready(planner)
            self._num_fresh = planner.num_fresh
            known = (self.num_pending, planner.settings.batch_size)
            if items or known != shown:
                self._admission.update(waiting=known[0], batch_size=known[1], seen=intake.marks)
                shown = known
            if not items and not planned:
                self._patiently(self._writer.flush)
                with self._changed:
                    self._changed.wait(POLL_S)

    def _plan_when_ready(self, planner: Planner) -> bool:
        with self._changed:
            if self._ready is not None or not planner.ready:
                return False
            measured = self._measured
        planned = planner.plan(
            Signals(
                backlog=planner.num_fresh,
                since_publish_s=time.monotonic() - self._published_at,
                starved=measured.starved,
                age_s=measured.age_s,
                lag_steps=measured.lag_steps,
                publish_share=measured.publish_share,
            )
        )
        if planned.row.publish:
            self._published_at = time.monotonic()
        position = self._patiently(lambda: self._writer.write([planned.row]))
        self._hand_over(Planned(row=planned.row, batch=planned.batch, plan_position=position))
        return True

    def _keep_quarantined(self, items: Sequence[Item]) -> None:
        broken = [item for item in items if item.record is not None]
        if broken:
            entries = [quarantine_entry(item) for item in broken]
            self._patiently(lambda: self._log.append("quarantine", 0, entries))
            for item in broken:
                item.record = None

    def _patiently(self, operation: Callable[[], T]) -> T:
        result = retrying(operation, stop=self._stop, on_failure=self._note_trouble)
        self.trouble = ""
        return result

    def _note_trouble(self, reason: str) -> None:
        self.trouble = reason

    def _wait_for_slot(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._ready is None or self._stop.is_set())
            return not self._stop.is_set()

    def _hand_over(self, planned: Planned) -> None:
        with self._changed:
            self._unfinished += len(planned.batch)
            self._ready = planned
            self._changed.notify_all()
