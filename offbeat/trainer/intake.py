"""Intake: from log records to trajectories that may be planned, each with its place on the log.

    read ──> headers ──> seen before? ──> numbering gap? ──> decode + contract ──> Item
                            │ duplicate      │ missing           │ quarantined
                            └────────────────┴───────────────────┴──> Item that will be dropped, with its reason

Deterministic: what becomes of a record depends on its bytes and on the records before it, never on time.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from offbeat.errors import PositionOutOfRange, RecordCorrupt, TrajectoryError
from offbeat.ledger import Cursor, Drop, Fate, Segment
from offbeat.log import Entry, Log, Record
from offbeat.trajectory import RecordHeaders, TrajectoryBatch, decode

LATENCY_WINDOW = 4096


@dataclass(slots=True, kw_only=True)
class Item:
    """One record, or what is left of it: rows [row, end) are unresolved.

    fate: set when the whole item is to be dropped; then `count` trajectories are counted and `batch` is None.
    following: the producer's next expected sequence once this item is taken up. record: kept for quarantine.
    """

    partition: int
    position: int
    row: int
    end: int
    count: int
    producer: str
    following: int
    oldest_version: int = 0
    batch: TrajectoryBatch | None = None
    fate: Fate | None = None
    reason: str = ""
    record: Record | None = None

    def __len__(self) -> int:
        return self.end - self.row

    @property
    def cursor(self) -> Cursor:
        """The place of the first row that is not resolved."""
        return Cursor(self.position + 1, 0) if self.row >= self.end else Cursor(self.position, self.row)

    def first_run(self, oldest_allowed: int) -> tuple[int, bool]:
        """End of the first run of rows that are all stale or all fresh, and whether they are stale."""
        if self.batch is None or self.oldest_version >= oldest_allowed:
            return self.end, False
        stale = self.batch.min_version[self.row : self.end] < oldest_allowed
        changes = np.flatnonzero(stale != stale[0])
        return (self.row + int(changes[0]) if changes.size else self.end), bool(stale[0])

    def num_fresh(self, oldest_allowed: int) -> int:
        """Rows that may still be trained on."""
        if self.batch is None:
            return 0
        if self.oldest_version >= oldest_allowed:
            return len(self)
        return int((self.batch.min_version[self.row : self.end] >= oldest_allowed).sum())

    def drop(self, begin: int, end: int, fate: Fate, reason: str) -> Drop:
        """Rows [begin, end) as a drop; a whole-item fate counts `count`, whatever its rows."""
        count = self.count if self.fate else end - begin
        return Drop(segment=Segment(self.partition, self.position, begin, end), fate=fate, reason=reason, count=count)


class Intake:
    """Reads every partition ahead of the plan and decodes at once, so that data latency is not a matter of training."""

    def __init__(
        self, log: Log, schema: pa.Schema, *, run_id: str, cursors: Mapping[int, Cursor], marks: Mapping[str, int]
    ) -> None:
        self.marks = dict(marks)
        self.latencies_ms: deque[float] = deque(maxlen=LATENCY_WINDOW)
        self._log = log
        self._schema = schema
        self._run_id = run_id
        self._cursors = dict(cursors)
        self._next = {
            partition: self._cursors.get(partition, Cursor(0, 0)).position for partition in range(log.num_partitions)
        }

    def poll(self, newest_version: int) -> list[Item]:
        """Every record appended since the last poll, as items in read order.

        newest_version: newest policy version that can have acted; a trajectory of a later one breaks the contract.
        """
        items: list[Item] = []
        for partition in self._next:
            for record in self._read(partition):
                items.extend(self._items(record, newest_version))
        return items

    def lag(self) -> int:
        """Records on the log that have not been read yet."""
        return sum(max(0, self._log.end("trajectories", p) - at) for p, at in self._next.items())

    def _read(self, partition: int) -> list[Record]:
        try:
            records = self._log.read("trajectories", partition, self._next[partition])
        except PositionOutOfRange:
            # Retention took records that were never read; the gap in the numbering accounts for them.
            self._next[partition] = self._log.begin("trajectories", partition)
            return []
        if records:
            self._next[partition] = records[-1].position + 1
        return records

    def _items(self, record: Record, newest_version: int) -> Iterator[Item]:
        try:
            headers = RecordHeaders.parse(record.headers)
        except RecordCorrupt as error:
            yield _dropped(record, "quarantined", f"headers: {error}", count=0)
            return
        cursor = self._cursors.get(record.partition)
        resumed_row = cursor.row if cursor and cursor.position == record.position else 0
        mark = self.marks.get(headers.producer, 0)
        following = headers.sequence + headers.count
        if not resumed_row:
            if following <= mark:
                producer = headers.producer
                yield _dropped(
                    record, "duplicate", "seen before", count=headers.count, producer=producer, following=mark
                )
                return
            if headers.sequence > mark:
                yield _missing(record, headers, mark)
        self.marks[headers.producer] = max(mark, following)
        new = following - max(mark, headers.sequence) if not resumed_row else headers.count
        yield self._decoded(record, headers, newest_version, resumed_row, new)

    def _decoded(self, record: Record, headers: RecordHeaders, newest_version: int, row: int, new: int) -> Item:
        following = max(self.marks[headers.producer], headers.sequence + headers.count)
        try:
            if headers.run_id != self._run_id:
                raise RecordCorrupt(f"run id: got {headers.run_id!r}, expected {self._run_id!r}")
            if new != headers.count:
                raise RecordCorrupt(
                    f"sequence: {headers.count - new} of its {headers.count} trajectories were seen before"
                )
            if headers.max_version > newest_version:
                raise RecordCorrupt(
                    f"policy version {headers.max_version} does not exist yet; newest is {newest_version}"
                )
            batch = decode(headers, record.payload, self._schema)
        except TrajectoryError as error:
            return _dropped(
                record,
                "quarantined",
                str(error),
                count=new - row,
                producer=headers.producer,
                following=following,
            )
        self.latencies_ms.append(max(0.0, (time.time_ns() - record.appended_at_ns) / 1e6))
        return Item(
            partition=record.partition,
            position=record.position,
            row=row,
            end=len(batch),
            count=len(batch),
            producer=headers.producer,
            following=following,
            oldest_version=headers.min_version,
            batch=batch,
        )


def _dropped(record: Record, fate: Fate, reason: str, *, count: int, producer: str = "", following: int = 0) -> Item:
    return Item(
        partition=record.partition,
        position=record.position,
        row=0,
        end=count,
        count=count,
        producer=producer,
        following=following,
        fate=fate,
        reason=reason,
        record=record if fate == "quarantined" else None,
    )


def _missing(record: Record, headers: RecordHeaders, mark: int) -> Item:
    """The gap in front of a record, as an item without rows whose place is the end of the record before."""
    count = headers.sequence - mark
    return Item(
        partition=record.partition,
        position=record.position - 1,
        row=0,
        end=0,
        count=count,
        producer=headers.producer,
        following=headers.sequence,
        fate="quarantined",
        reason=f"missing: {count} trajectories before sequence {headers.sequence} never arrived",
    )


def quarantine_entry(item: Item) -> Entry:
    """A broken record as the quarantine channel keeps it: its bytes, its headers, where it was and why."""
    record = item.record
    headers = {} if record is None else dict(record.headers)
    place = {"source_partition": str(item.partition), "source_position": str(item.position), "reason": item.reason}
    return Entry(headers=headers | place, payload=b"" if record is None else record.payload)


def fetch(log: Log, segments: tuple[Segment, ...], schema: pa.Schema) -> TrajectoryBatch:
    """The exact trajectories of a planned step, read again from the log.

    Raises RecordCorrupt where the log no longer holds what the plan names, PositionOutOfRange where it was trimmed.
    """
    parts = []
    opened: tuple[tuple[int, int], TrajectoryBatch] | None = None
    for segment in segments:
        place = (segment.partition, segment.position)
        if opened is None or opened[0] != place:
            records = log.read("trajectories", segment.partition, segment.position, max_records=1)
            if not records or records[0].position != segment.position:
                raise RecordCorrupt(
                    f"partition {place[0]}: the planned record at position {place[1]} is not on the log"
                )
            opened = (place, decode(RecordHeaders.parse(records[0].headers), records[0].payload, schema))
        parts.append(opened[1].slice(segment.begin, segment.end))
    return TrajectoryBatch.concat(parts)
