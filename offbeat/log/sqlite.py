"""The embedded log: one SQLite database per partition, in write-ahead mode, one writer and any number of readers.

    <folder>/partition-000.db ...   trajectories, one file per generator
    <folder>/plan.db                the plan
    <folder>/quarantine.db          quarantined records

All of them are made when the first is used, and never again: a file that is missing later is LogDamaged.
An acknowledged append survives the death of any process; after a power cut the last moments may be missing
(synchronous=NORMAL), never a record in the middle. What one file does is in offbeat.log.partition.
"""

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from offbeat.errors import LogError, RecordTooLarge
from offbeat.log.base import Channel, Entry, Record
from offbeat.log.database import make_files, translated
from offbeat.log.partition import PartitionFile


class SqliteLog:
    """The log of one run under `folder`. Files are made and opened at first use; safe from several threads.

    Not to be carried across a fork: open another one in the child.
    """

    def __init__(self, folder: Path, *, num_partitions: int, max_record_bytes: int) -> None:
        self._folder = folder
        self._num_partitions = num_partitions
        self._max_record_bytes = max_record_bytes
        self._files: dict[tuple[Channel, int], PartitionFile] = {}
        self._lock = threading.Lock()

    @property
    def num_partitions(self) -> int:
        """Partitions of the trajectories channel."""
        return self._num_partitions

    @property
    def max_record_bytes(self) -> int:
        """Largest payload that `append` takes, in bytes."""
        return self._max_record_bytes

    def append(self, channel: Channel, partition: int, entries: Sequence[Entry]) -> int:
        """Append all entries in one transaction, or nothing; raises RecordTooLarge, LogUnavailable, LogDamaged."""
        for entry in entries:
            if len(entry.payload) > self._max_record_bytes:
                got, name = len(entry.payload), f"{channel}/{partition}"
                raise RecordTooLarge(
                    f"log {name}: got a record of {got} bytes, expected at most {self._max_record_bytes}; "
                    f"write smaller records or raise log.max_record_bytes"
                )
        return self._file(channel, partition).append(entries)

    def read(
        self,
        channel: Channel,
        partition: int,
        position: int,
        *,
        max_records: int = 1024,
        max_bytes: int = 64 << 20,
        payloads: bool = True,
    ) -> list[Record]:
        """Records at and after `position`; raises PositionOutOfRange below `begin`, LogDamaged beyond `end`."""
        return self._file(channel, partition).read(position, max_records, max_bytes if payloads else None)

    def begin(self, channel: Channel, partition: int) -> int:
        """Position of the oldest record kept."""
        return self._file(channel, partition).begin()

    def end(self, channel: Channel, partition: int) -> int:
        """Position that the next append will get."""
        return self._file(channel, partition).end()

    def trim(self, channel: Channel, partition: int, before: int) -> None:
        """Forget records below `before`; their pages are used again by later appends."""
        self._file(channel, partition).trim(before)

    def position_at(self, channel: Channel, partition: int, appended_at_ns: int) -> int:
        """Position of the first record appended at or after this time; every record before it is older.

        Found by walking from the oldest record, so the cost is that of what a trim there will delete.
        """
        return self._file(channel, partition).position_at(appended_at_ns)

    def close(self) -> None:
        """Close every file; later calls raise LogUnavailable."""
        with self._lock:
            for file in self._files.values():
                file.close()

    def _file(self, channel: Channel, partition: int) -> PartitionFile:
        file = self._files.get((channel, partition))
        if file is not None:
            return file
        count = self._num_partitions if channel == "trajectories" else 1
        if not 0 <= partition < count:
            raise LogError(f"log partition: got {channel}/{partition}, expected 0 to {count - 1}")
        path = self._folder / _name(channel, partition)
        with self._lock:
            self._make(path)
            return self._files.setdefault((channel, partition), PartitionFile(path, channel, partition))

    def _make(self, wanted: Path) -> None:
        """Make the whole log when there is none yet."""
        names = [_name("trajectories", partition) for partition in range(self._num_partitions)]
        try:
            make_files(self._folder, [*names, _name("plan", 0), _name("quarantine", 0)])
        except (sqlite3.Error, OSError) as error:
            raise translated(wanted, "", error) from error


def _name(channel: Channel, partition: int) -> str:
    return f"partition-{partition:03d}.db" if channel == "trajectories" else f"{channel}.db"
