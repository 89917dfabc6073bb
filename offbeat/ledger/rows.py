"""The rows of the plan: what the trainer decided before each step, and what came of it.

    epoch     a trainer opens its life; rows of an older epoch after it do not count
    step      the decision: which trajectories this step trains on, which are dropped and why, what the settings are
    outcome   what came of it: policy versions, metrics, a digest of the resulting parameters
    event     something worth knowing later (a repeated step that differs, a checkpoint that failed, ...)

Every row is one JSON object on the log's plan channel. Together they are the ledger.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from offbeat.errors import LogDamaged
from offbeat.log import Entry, Record

Fate = Literal["trained", "stale", "evicted", "quarantined", "duplicate"]
FATES: tuple[Fate, ...] = ("trained", "stale", "evicted", "quarantined", "duplicate")


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows [begin, end) of the record at `position` of `partition`."""

    partition: int
    position: int
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Trajectories that leave the log untrained. A record that never arrived has a `count`, but no rows."""

    segment: Segment
    fate: Fate
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the next unresolved trajectory of a partition is: a record's position and a row inside it."""

    position: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Trajectories by fate since the beginning of the run. Duplicates stand beside the account, not in it."""

    trained: int = 0
    stale: int = 0
    evicted: int = 0
    quarantined: int = 0
    duplicate: int = 0

    def plus(self, fate: Fate, count: int) -> "Totals":
        """These totals with `count` more trajectories of one fate."""
        return replace(self, **{fate: getattr(self, fate) + count})

    @property
    def resolved(self) -> int:
        """Trajectories that have met their fate."""
        return self.trained + self.stale + self.evicted + self.quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """A trainer's life begins, continuing from the checkpoint of `resumed_step`."""

    epoch: int
    resumed_step: int
    started_at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """The decision about one step.

    segments: what is trained, in batch order. cursors, totals: the state after this step. marks: next expected sequence
    of the producers whose records this step took up. settings: state of the batch and sync controllers after it.
    publish: whether the parameters after this step become policy version `version_in + 1`.
    """

    epoch: int
    step: int
    seed: int
    version_in: int
    publish: bool
    batch_size: int
    segments: tuple[Segment, ...]
    drops: tuple[Drop, ...]
    cursors: Mapping[int, Cursor]
    marks: Mapping[str, int]
    totals: Totals
    settings: Mapping[str, float]
    planned_at_ns: int

    @property
    def version_out(self) -> int:
        """The newest policy version after this step."""
        return self.version_in + int(self.publish)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one step. digest: of every parameter and optimiser value after it."""

    epoch: int
    step: int
    version_in: int
    version_out: int
    digest: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    finished_at_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something worth knowing later."""

    epoch: int
    step: int
    name: str
    detail: str
    at_ns: int


Row = EpochRow | StepRow | Outcome | Event
_KINDS: dict[str, type[EpochRow] | type[StepRow] | type[Outcome] | type[Event]] = {
    "epoch": EpochRow,
    "step": StepRow,
    "outcome": Outcome,
    "event": Event,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def row_entry(row: Row) -> Entry:
    """A row as the log stores it."""
    data = _step_data(row) if isinstance(row, StepRow) else asdict(row)
    payload = json.dumps(data, separators=(",", ":")).encode()
    return Entry(headers={"kind": _NAMES[type(row)], "epoch": str(row.epoch)}, payload=payload)


def parse_row(record: Record) -> Row:
    """A row as it was written; raises LogDamaged naming the position of one that cannot be read."""
    try:
        kind = _KINDS[record.headers["kind"]]
        data = json.loads(record.payload)
        return _parse_step(data) if kind is StepRow else kind(**data)
    except (KeyError, TypeError, ValueError) as error:
        raise LogDamaged(
            f"the plan's row at position {record.position} cannot be read ({error!r});"
            " put back the run's folder and its part of the store from one backup, or start a new run;"
            " checkpoints and models are not affected"
        ) from error


def _flat(segment: Segment) -> list[int]:
    return [segment.partition, segment.position, segment.begin, segment.end]


def _step_data(row: StepRow) -> dict[str, Any]:
    data = {name: getattr(row, name) for name in ("epoch", "step", "seed", "version_in", "publish", "batch_size")}
    return data | {
        "segments": [_flat(segment) for segment in row.segments],
        "drops": [[*_flat(drop.segment), drop.fate, drop.reason, drop.count] for drop in row.drops],
        "cursors": {str(partition): [cursor.position, cursor.row] for partition, cursor in row.cursors.items()},
        "marks": dict(row.marks),
        "totals": asdict(row.totals),
        "settings": dict(row.settings),
        "planned_at_ns": row.planned_at_ns,
    }


def _parse_step(data: dict[str, Any]) -> StepRow:
    return StepRow(
        **data
        | {
            "segments": tuple(Segment(*numbers) for numbers in data["segments"]),
            "drops": tuple(
                Drop(segment=Segment(*numbers), fate=fate, reason=reason, count=count)
                for *numbers, fate, reason, count in data["drops"]
            ),
            "cursors": parse_cursors(data["cursors"]),
            "totals": Totals(**data["totals"]),
        }
    )


def parse_cursors(data: Mapping[str, list[int]]) -> dict[int, Cursor]:
    """Cursors from their JSON form."""
    return {int(partition): Cursor(*numbers) for partition, numbers in data.items()}
