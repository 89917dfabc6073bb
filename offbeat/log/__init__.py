"""The trajectory log. `open_log` is the one place that knows the backends."""

from pathlib import Path
from typing import Literal

from offbeat.log.base import CHANNELS, Channel, Entry, Log, Record

__all__ = ["CHANNELS", "Channel", "Entry", "Log", "Record", "open_log"]


def open_log(kind: Literal["sqlite"], *, folder: Path, num_partitions: int, max_record_bytes: int) -> Log:
    """Open (and where the backend is embedded, create) a run's log."""
    from offbeat.log.sqlite import SqliteLog

    return SqliteLog(folder, num_partitions=num_partitions, max_record_bytes=max_record_bytes)
