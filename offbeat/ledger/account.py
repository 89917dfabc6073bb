"""The account: where every trajectory of a run is, counted twice from independent sources.

    produced  = the generators' own numbering of what they appended
    trained + stale + evicted + quarantined = what the plan says of finished steps
    pending   = what still lies on the log after the last finished step

The difference between the first line and the two others is zero, always. It is computed here, not assumed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from offbeat.errors import PositionOutOfRange, RecordCorrupt
from offbeat.ledger.plan import PlanView, Resolved
from offbeat.ledger.rows import Cursor, Outcome
from offbeat.log import Log, Record
from offbeat.runs import Run
from offbeat.trajectory import RecordHeaders


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Trajectories of one run by fate, and how far the trainer came."""

    produced: int
    trained: int
    stale: int
    evicted: int
    quarantined: int
    pending: int
    duplicates: int
    steps: int
    policy_version: int
    staleness_max: int
    restarts: int

    @property
    def difference(self) -> int:
        """What is not accounted for; zero."""
        return self.produced - self.trained - self.stale - self.evicted - self.quarantined - self.pending


def read_account(run: Run) -> Account:
    """The account of a run as its log stands now; may be called while the run works."""
    log = run.open_log()
    try:
        return account_of(log)
    finally:
        log.close()


def account_of(log: Log) -> Account:
    """The account of one log."""
    view = PlanView().advance(log)
    state = view.resolved(Resolved(), finished_only=True)
    marks = dict(state.marks)
    pending = sum(_pending_in(log, partition, state, marks) for partition in range(log.num_partitions))
    staleness = [row.metrics.get("staleness_max", 0.0) for row in view.outcomes.values()]
    totals = state.totals
    return Account(
        produced=sum(marks.values()),
        trained=totals.trained,
        stale=totals.stale,
        evicted=totals.evicted,
        quarantined=totals.quarantined,
        pending=pending,
        duplicates=totals.duplicate,
        steps=state.step,
        policy_version=state.version,
        staleness_max=int(max(staleness, default=0)),
        restarts=max(0, len(view.epochs) - 1),
    )


def _pending_in(log: Log, partition: int, state: Resolved, marks: dict[str, int]) -> int:
    cursor = state.cursors.get(partition, Cursor(0, 0))
    pending = 0
    for record in records_from(log, partition, cursor.position, payloads=False):
        try:
            headers = RecordHeaders.parse(record.headers)
        except RecordCorrupt:
            continue
        if record.position == cursor.position and cursor.row:
            pending += headers.count - cursor.row
            continue
        mark = marks.get(headers.producer, 0)
        following = max(mark, headers.sequence + headers.count)
        pending += following - mark
        marks[headers.producer] = following
    return pending


def records_from(log: Log, partition: int, position: int, *, payloads: bool) -> Iterator[Record]:
    """Every record from `position` to the present end; begins at the log's begin where earlier ones were trimmed."""
    while True:
        try:
            records = log.read("trajectories", partition, position, payloads=payloads)
        except PositionOutOfRange:
            position = log.begin("trajectories", partition)
            continue
        if not records:
            return
        yield from records
        position = records[-1].position + 1


def read_outcomes(log: Log, position: int = 0) -> tuple[list[Outcome], int]:
    """Outcomes written at and after a plan position, and the position to go on from."""
    view = PlanView(position=position).advance(log)
    return [view.outcomes[step] for step in sorted(view.outcomes)], view.position


def fates(account: Account) -> Mapping[str, int]:
    """The terms of the equation by name, as every report shows them."""
    names = ("produced", "trained", "stale", "evicted", "quarantined", "pending")
    return {name: getattr(account, name) for name in names}
