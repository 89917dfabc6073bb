"""One partition of the embedded log: a SQLite file of consecutive records.

Positions are consecutive from 0 and never used twice: the next one follows the last row, or the persisted `begin`
where trimming left none. A record that is damaged on disk comes back with empty headers or an empty payload
instead of ending the stream. A file that is lost, exchanged, or shorter than a reader knows it was, is LogDamaged.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offbeat.errors import LogUnavailable, PositionOutOfRange
from offbeat.log.base import Channel, Entry, Record
from offbeat.log.database import (
    PAGE_BYTES,
    Checkpointer,
    Nonsense,
    damaged,
    identity,
    is_damage,
    open_database,
    translated,
)

TRIM_ROWS = 64
LARGEST_GAP = 1 << 16

BEGIN = "SELECT begin FROM bounds"
LAST = "SELECT max(position) FROM records"
INSERT = "INSERT INTO records VALUES (?, ?, ?, ?)"
SIZES = "SELECT position, length(payload) FROM records WHERE position >= ? ORDER BY position LIMIT ?"
ROWS = "SELECT position, appended_at_ns, headers, payload FROM records WHERE position BETWEEN ? AND ? ORDER BY position"
HEADS = ROWS.replace("payload FROM", "x'' FROM")
# The first young record in position order: all before it are older, however the clock jumped between them.
YOUNG = "SELECT position FROM records WHERE position >= ? AND appended_at_ns >= ? ORDER BY position LIMIT 1"
FORGET = "DELETE FROM records WHERE position IN (SELECT position FROM records WHERE position < ? LIMIT ?)"


class PartitionFile:
    """One partition, opened at first use. A lock serialises this process's threads, SQLite the processes."""

    def __init__(self, path: Path, channel: Channel, partition: int) -> None:
        self._path = path
        self._channel = channel
        self._partition = partition
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity = (0, 0)
        self._checkpointer = Checkpointer(path)
        self._closed = False

    def append(self, entries: Sequence[Entry]) -> int:
        """Append in one transaction and return the position after the last."""
        headers = [json.dumps(dict(entry.headers), separators=(",", ":")) for entry in entries]
        with self._transaction() as db:
            first, now_ns = _end(db), time.time_ns()
            rows = ((first + i, now_ns, headers[i], entry.payload) for i, entry in enumerate(entries))
            db.executemany(INSERT, rows)
            self._checkpointer.wrote(PAGE_BYTES + sum(len(entry.payload) for entry in entries))
        return first + len(headers)

    def read(self, position: int, max_records: int, max_bytes: int | None) -> list[Record]:
        """Records at and after `position`; no payloads where `max_bytes` is None.

        Raises PositionOutOfRange below `begin`, LogDamaged beyond `end`.
        """
        with self._opened(f"position {position}") as db:
            try:
                records = self._read_run(db, position, max_records, max_bytes)
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                records = self._read_singly(db, position, max_records, max_bytes)
            # Asked after the rows, so that a trim in between is noticed and not taken for a gap.
            if position < (begin := _begin(db)):
                raise PositionOutOfRange(f"{self._path}: got position {position}, expected {begin} or above")
            # A reader's position was handed out by this partition once: records that it had are gone.
            if not records and position > (end := _end(db)):
                raise damaged(self._path, f"it ends at position {end}, but was longer", f"position {position}")
        return list(self._without_gaps(position, records))[:max_records]

    def begin(self) -> int:
        """Position of the oldest record kept."""
        with self._opened() as db:
            return _begin(db)

    def end(self) -> int:
        """Position that the next append will get."""
        with self._opened() as db:
            return _end(db)

    def trim(self, before: int) -> None:
        """Forget records below `before`."""
        # The bound moves first and alone, so rows left over by a kill are invisible, and short transactions
        # leave the writer its turns.
        with self._transaction() as db:
            begin = max(_begin(db), min(before, _end(db)))
            db.execute("UPDATE bounds SET begin = ?", (begin,))
        while True:
            with self._transaction() as db:
                num_rows = db.execute(FORGET, (begin, TRIM_ROWS)).rowcount
                self._checkpointer.wrote(num_rows * PAGE_BYTES)
            if num_rows < TRIM_ROWS:
                return

    def position_at(self, appended_at_ns: int) -> int:
        """First position appended at or after this time, else the end."""
        with self._opened() as db:
            row = db.execute(YOUNG, (_begin(db), appended_at_ns)).fetchone()
            return int(row[0]) if row else _end(db)

    def close(self) -> None:
        """Close the connection for good."""
        with self._lock:
            self._closed = True
            self._checkpointer.close()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _read_run(self, db: sqlite3.Connection, position: int, max_records: int, max_bytes: int | None) -> list[Record]:
        last, total = None, 0
        for at, size in db.execute(SIZES, (position, max_records)):
            total += size or 0
            if last is not None and max_bytes is not None and total > max_bytes:
                break
            last = at
        if last is None:
            return []
        rows = db.execute(HEADS if max_bytes is None else ROWS, (position, last)).fetchall()
        return [self._record(*row) for row in rows]

    def _read_singly(
        self, db: sqlite3.Connection, position: int, max_records: int, max_bytes: int | None
    ) -> list[Record]:
        """Row by row through a damaged file; raises the damage when not even the end is known and nothing was read."""
        end = _end_if_known(db)
        records: list[Record] = []
        total = 0
        for at in range(position, position + max_records if end is None else min(end, position + max_records)):
            try:
                row = _row(db, at, ROWS if max_bytes is not None else HEADS)
            except sqlite3.DatabaseError as error:
                if not is_damage(error) or (end is None and not records):
                    raise
                row = _head_if_readable(db, at)
            if end is None and row is None:
                break
            record = self._record(*(row or (at, 0, b"", b"")))
            total += len(record.payload)
            if records and max_bytes is not None and total > max_bytes:
                break
            records.append(record)
        return records

    def _record(self, position: int, appended_at_ns: Any, headers: Any, payload: Any) -> Record:
        return Record(
            channel=self._channel,
            partition=self._partition,
            position=position,
            appended_at_ns=appended_at_ns if isinstance(appended_at_ns, int) else 0,
            headers=_parse_headers(headers),
            payload=payload if isinstance(payload, bytes) else b"",
        )

    def _without_gaps(self, position: int, records: list[Record]) -> Iterator[Record]:
        """Positions are consecutive, so a missing one is a lost record: it comes back empty, to be accounted for."""
        for record in records:
            if record.position - position > LARGEST_GAP:
                raise damaged(self._path, f"followed by position {record.position}", f"position {position}")
            for lost in range(position, record.position):
                yield self._record(lost, 0, b"", b"")
            yield record
            position = record.position + 1

    @contextmanager
    def _opened(self, place: str = "") -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed:
                raise LogUnavailable(f"{self._path}: this log is closed; open it again")
            try:
                yield self._connected()
            except (sqlite3.Error, OSError) as error:
                raise translated(self._path, place, error) from error

    def _connected(self) -> sqlite3.Connection:
        """The connection; raises LogDamaged when its file is no longer the one that others open under this name."""
        found = identity(self._path)
        if self._connection is None:
            self._connection, self._identity = open_database(self._path), found
        elif found != self._identity:
            raise damaged(self._path, "another file was put in its place while this process used it")
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._opened() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")


def _begin(db: sqlite3.Connection) -> int:
    row = db.execute(BEGIN).fetchone()
    if row is None or not isinstance(row[0], int):
        raise Nonsense(f"got {row and row[0]!r} where the first position should stand")
    return row[0]


def _end(db: sqlite3.Connection) -> int:
    last = db.execute(LAST).fetchone()[0]
    return _begin(db) if last is None else max(int(last) + 1, _begin(db))


def _end_if_known(db: sqlite3.Connection) -> int | None:
    try:
        return _end(db)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return None


def _row(db: sqlite3.Connection, position: int, query: str) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = db.execute(query, (position, position)).fetchone()
    return row


def _head_if_readable(db: sqlite3.Connection, position: int) -> tuple[Any, ...] | None:
    """The row without its payload, whose pages may be the only damaged ones."""
    try:
        return _row(db, position, HEADS)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return None


def _parse_headers(text: Any) -> Mapping[str, str]:
    try:
        headers = json.loads(text)
    except (TypeError, ValueError):
        return {}
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        return {}
    return headers
