"""The SQLite file under a partition: made whole, opened alike everywhere, checkpointed aside, its errors explained.

SQLite would move the write-ahead file into the main file inside whichever append crosses a limit, and that append
would wait for the disk. Here a short-lived thread does it, with a connection of its own.
"""

import os
import sqlite3
import tempfile
import threading
from contextlib import closing, suppress
from pathlib import Path

from offbeat.errors import LogUnavailable

BUSY_TIMEOUT_S = 10.0
CHECKPOINT_BYTES = 16 << 20
CHECKPOINT_TIMEOUT_S = 1.0
PAGE_BYTES = 1 << 16

# Large pages keep a record's pages few; the write-ahead file is cut back to this size whenever it starts anew.
CREATE = """
PRAGMA page_size = 65536;
PRAGMA journal_mode = WAL;
CREATE TABLE records (
    position INTEGER PRIMARY KEY, appended_at_ns INTEGER NOT NULL, headers TEXT NOT NULL, payload BLOB NOT NULL
);
CREATE TABLE bounds (begin INTEGER NOT NULL);
INSERT INTO bounds VALUES (0);
"""
CONFIGURE = """
PRAGMA synchronous = NORMAL;
PRAGMA wal_autocheckpoint = 0;
PRAGMA secure_delete = OFF;
PRAGMA journal_size_limit = 67108864;
"""

ADVICE = {
    "SQLITE_FULL": "free space on this file system",
    "SQLITE_READONLY": "make the file and its folder writable",
    "SQLITE_CANTOPEN": "make the folder exist and be writable",
    "SQLITE_PERM": "make the file and its folder writable",
    "SQLITE_BUSY": "another process holds it; try again, or end that process",
    "SQLITE_IOERR": "check the disk and its free space",
    "SQLITE_CORRUPT": "the file is damaged; resume from a copy, or start a new run",
    "SQLITE_NOTADB": "the file is damaged or not ours; resume from a copy, or start a new run",
}


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to the file, which is made when there is none; raises sqlite3.Error and OSError."""
    if not path.exists():
        _create(path)
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    # Bytes, so that a flipped byte in a text is ours to judge and no exception of the driver.
    db.text_factory = bytes
    try:
        db.executescript(CONFIGURE)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _create(path: Path) -> None:
    """Make the database aside and link it into place: whoever comes first wins, and nobody sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        partial = Path(folder) / path.name
        with closing(sqlite3.connect(partial, isolation_level=None)) as db:
            db.executescript(CREATE)
        with suppress(FileExistsError):
            os.link(partial, path)


class Checkpointer:
    """Moves the write-ahead file into the main one, in the background, whenever enough was written. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending_bytes = 0
        self._thread: threading.Thread | None = None

    def wrote(self, num_bytes: int) -> None:
        """Count what was written and start a checkpoint when it is due and none runs."""
        self._pending_bytes += num_bytes
        if self._pending_bytes >= CHECKPOINT_BYTES and (self._thread is None or not self._thread.is_alive()):
            self._pending_bytes = 0
            self._thread = threading.Thread(
                target=_checkpoint, args=(self._path,), name=f"checkpoint-{self._path.stem}"
            )
            self._thread.start()

    def close(self) -> None:
        """Wait for the checkpoint that runs."""
        if self._thread is not None:
            self._thread.join()


def _checkpoint(path: Path) -> None:
    """Copy most of it beside the writers, then the rest with writers held off, so that the file starts anew.

    A failure loses nothing: the records stay where they are and the next checkpoint tries again.
    """
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=CHECKPOINT_TIMEOUT_S)) as db:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


def is_damage(error: sqlite3.Error) -> bool:
    """True where SQLite found bytes that make no sense, as opposed to a file that it cannot get at."""
    return _error_name(error).startswith("SQLITE_CORRUPT")


def _error_name(error: Exception) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


def unavailable(path: Path, place: str, error: Exception) -> LogUnavailable:
    """The same error for the log's users: which file, where in it, and what to do."""
    family = "_".join(_error_name(error).split("_")[:2])
    advice = ADVICE.get(family, "check the disk, its free space and the rights on the folder")
    return LogUnavailable(f"log file {path}{', ' if place else ''}{place}: {error}; {advice}")
