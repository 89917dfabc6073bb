"""The SQLite files under the log: made whole and once, opened alike everywhere, checkpointed aside, errors explained.

All files of a log are made together and never again, so a file that is missing later was lost, and nothing puts an
empty one in its place.

SQLite would move the write-ahead file into the main file inside whichever append crosses a limit, and that append
would wait for the disk. Here a short-lived thread does it, with a connection of its own.
"""

import errno
import sqlite3
import tempfile
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

from offbeat.errors import LogDamaged, LogUnavailable

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
}
# Of fixed statements on a fixed schema, SQLITE_ERROR and the two after it can only mean that the schema is gone.
DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_CONSTRAINT", "SQLITE_FORMAT")
REMEDY = (
    "put back the run's folder and its part of the store from one backup, or start a new run;"
    " checkpoints and models are not affected"
)
WRITE_AHEAD = b"\x02\x02"  # bytes 18 and 19 of every file that this module made


class Nonsense(sqlite3.DatabaseError):
    """A value that this module never wrote; treated like a page that SQLite itself finds damaged."""

    sqlite_errorname = "SQLITE_CORRUPT"


def make_files(folder: Path, names: Iterable[str]) -> None:
    """Make a log's folder with all its files aside and move it into place, unless there is one already.

    Whoever comes first wins, and nobody sees half of it. Raises sqlite3.Error and OSError.
    """
    folder = folder.resolve()
    if folder.is_dir() and any(folder.iterdir()):
        return
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as aside:
        partial = Path(aside) / folder.name
        partial.mkdir()
        for name in names:
            with closing(sqlite3.connect(partial / name, isolation_level=None)) as db:
                db.executescript(CREATE)
        try:
            partial.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to a file that exists; raises sqlite3.Error."""
    # Bytes, so that a flipped byte in a text is ours to judge and no exception of the driver.
    db = _connect(path, BUSY_TIMEOUT_S)
    db.text_factory = bytes
    try:
        db.executescript(CONFIGURE)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _connect(path: Path, timeout_s: float) -> sqlite3.Connection:
    # By default SQLite would make an empty file where there is none.
    address = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(address, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False)


def identity(path: Path) -> tuple[int, int]:
    """Which file this is, device and inode; raises LogDamaged when it is gone, OSError when it cannot be told."""
    try:
        found = path.stat()
    except FileNotFoundError:
        # Without the folder that holds the log's own, a disk is away and may come back.
        if not path.parent.parent.is_dir():
            raise
        raise damaged(path, "the file is gone") from None
    return found.st_dev, found.st_ino


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
    with suppress(sqlite3.Error), closing(_connect(path, CHECKPOINT_TIMEOUT_S)) as db:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


def is_damage(error: sqlite3.Error) -> bool:
    """True where SQLite found bytes that make no sense, as opposed to a file that it cannot get at."""
    return _error_name(error).startswith("SQLITE_CORRUPT")


def translated(path: Path, place: str, error: sqlite3.Error | OSError) -> LogDamaged | LogUnavailable:
    """The same error for the log's users: which file, where in it, and what to do."""
    name = _error_name(error)
    if name.startswith(DAMAGE):
        return damaged(path, str(error), place)
    if name.startswith("SQLITE_READONLY") and _forbids_writing(path):
        return damaged(path, "its header says that it is no file of ours", place)
    advice = ADVICE.get("_".join(name.split("_")[:2]), "check the disk, its free space and the rights on the folder")
    return LogUnavailable(f"log file {path}{', ' if place else ''}{place}: {error}; {advice}")


def damaged(path: Path, found: str, place: str = "") -> LogDamaged:
    """What was found in (or instead of) a file of the log."""
    return LogDamaged(f"log file {path}{', ' if place else ''}{place}: damaged: {found}; {REMEDY}")


def _forbids_writing(path: Path) -> bool:
    """Whether it is a damaged header that makes SQLite treat the file as read-only, and not the rights on it."""
    with path.open("rb") as file:
        return file.read(20)[18:] != WRITE_AHEAD


def _error_name(error: Exception) -> str:
    return str(getattr(error, "sqlite_errorname", ""))
