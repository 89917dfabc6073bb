"""Reading and writing the plan: what counts, who may write, and the state that its steps add up to.

    epoch 1 ── step 1 ── step 2 ── outcome 1 ──┬── epoch 2 ── outcome 2 ── step 3 ── ...
                                               └── step 3 of epoch 1: written by a zombie, after epoch 2: does not count

A row counts when no newer epoch stands before it. Of two rows for one step the first that counts is the plan.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from offbeat.errors import Fenced
from offbeat.ledger.rows import (
    Cursor,
    EpochRow,
    Event,
    Outcome,
    Row,
    StepRow,
    Totals,
    parse_cursors,
    parse_row,
    row_entry,
)
from offbeat.log import Log

PLAN: Final = "plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Everything that is settled after `step`: the part of the trainer's state that the plan alone determines.

    plan_position: where the rows after this step's own row begin on the plan channel.
    """

    step: int = 0
    version: int = 0
    cursors: Mapping[int, Cursor] = field(default_factory=dict)
    marks: Mapping[str, int] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    settings: Mapping[str, float] = field(default_factory=dict)
    plan_position: int = 0

    def after(self, row: StepRow, plan_position: int) -> "Resolved":
        """The state after one more step."""
        return Resolved(
            step=row.step,
            version=row.version_out,
            cursors={**self.cursors, **row.cursors},
            marks={**self.marks, **row.marks},
            totals=row.totals,
            settings=row.settings,
            plan_position=plan_position,
        )

    def to_json(self) -> dict[str, Any]:
        """As `state.json` keeps it."""
        cursors = {str(partition): [cursor.position, cursor.row] for partition, cursor in self.cursors.items()}
        return asdict(replace(self, cursors={})) | {"cursors": cursors}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Resolved":
        """Read what `to_json` wrote."""
        return cls(**{**data, "cursors": parse_cursors(data["cursors"]), "totals": Totals(**data["totals"])})


@dataclass(slots=True)
class PlanView:
    """The rows that count, as far as they have been read. `position` is where reading goes on."""

    position: int = 0
    epoch: int = 0
    steps: dict[int, tuple[StepRow, int]] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    first_outcomes: dict[int, Outcome] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    epochs: list[EpochRow] = field(default_factory=list)

    def advance(self, log: Log) -> "PlanView":
        """Take in every row that has been written since."""
        while records := log.read(PLAN, 0, max(self.position, log.begin(PLAN, 0)), max_records=4096):
            for record in records:
                self._take(parse_row(record), record.position + 1)
                self.position = record.position + 1
        return self

    def _take(self, row: Row, next_position: int) -> None:
        if row.epoch < self.epoch:
            return
        self.epoch = row.epoch
        if isinstance(row, EpochRow):
            self.epochs.append(row)
        elif isinstance(row, StepRow):
            self.steps.setdefault(row.step, (row, next_position))
        elif isinstance(row, Outcome):
            self.outcomes[row.step] = row
            self.first_outcomes.setdefault(row.step, row)
        else:
            self.events.append(row)

    def steps_after(self, step: int) -> list[tuple[StepRow, int]]:
        """Planned steps after `step`, in order, each with the position after its row; stops at the first gap."""
        found: list[tuple[StepRow, int]] = []
        while (planned := self.steps.get(step + len(found) + 1)) is not None:
            found.append(planned)
        return found

    def resolved(self, start: Resolved, *, finished_only: bool) -> Resolved:
        """State after the last planned step (or the last with an outcome), from a known earlier state."""
        state = start
        for row, position in self.steps_after(start.step):
            if finished_only and row.step not in self.outcomes:
                break
            state = state.after(row, position)
        return state


class PlanWriter:
    """The one pen of a living trainer. Outcomes wait in memory until the next decision or `flush` takes them along."""

    def __init__(self, log: Log, *, epoch: int, position: int) -> None:
        self.epoch = epoch
        self._log = log
        self._position = position
        self._waiting: list[Row] = []
        self._lock = threading.Lock()

    @classmethod
    def open(cls, log: Log, *, resumed_step: int, view: PlanView) -> "PlanWriter":
        """Begin a new epoch; `view` then holds every row that counts before it."""
        view.advance(log)
        epoch = view.epoch + 1
        row = EpochRow(epoch=epoch, resumed_step=resumed_step, started_at_ns=time.time_ns())
        log.append(PLAN, 0, [row_entry(row)])
        view.advance(log)
        if view.epoch != epoch or sum(found.epoch == epoch for found in view.epochs) != 1:
            raise Fenced(f"another trainer began epoch {view.epoch} of this run at the same moment; start only one")
        return cls(log, epoch=epoch, position=view.position)

    def write(self, rows: Sequence[Row]) -> int:
        """Append rows durably, after those that wait, and return the position after the last.

        Raises Fenced when a newer trainer has begun, LogUnavailable when nothing can be promised.
        """
        with self._lock:
            pending = [*self._waiting, *rows]
            if not pending:
                return self._position
            self._check_fence()
            self._position = self._log.append(PLAN, 0, [row_entry(row) for row in pending])
            self._waiting.clear()
            return self._position

    def defer(self, row: Row) -> None:
        """Keep a row for the next write; never blocks on the log."""
        with self._lock:
            self._waiting.append(row)

    def flush(self) -> None:
        """Write what waits."""
        self.write([])

    def _check_fence(self) -> None:
        for record in self._log.read(PLAN, 0, max(self._position, self._log.begin(PLAN, 0))):
            row = parse_row(record)
            if row.epoch > self.epoch:
                found = f"epoch {row.epoch} stands on the plan, this trainer's is {self.epoch}"
                raise Fenced(f"{found}: a newer trainer runs, this one stops")
            self._position = record.position + 1
