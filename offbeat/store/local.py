"""The embedded store: a folder, one file per object, `.offbeat/` beside them for locks, partial writes and etags.

Bytes are written aside and renamed into place, so a reader sees the old object or the new one, never half. The
rename happens under one lock of the folder, which also covers conditions, so of many writers exactly one wins. An
etag is the MD5 of the bytes. Large objects are flushed to disk and their etag is remembered with the file's
identity; a file changed by anybody else is hashed again.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from offbeat.errors import DigestMismatch, ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable
from offbeat.store.base import ObjectInfo
from offbeat.store.etags import EtagCache, copy_hashed, hash_bytes
from offbeat.store.keys import RESERVED, check_key, check_prefix

LOCK_TIMEOUT_S = 30.0
LOCK_POLL_S = 0.002
PARTIAL_MAX_AGE_S = 3600.0


class LocalStore:
    """A store under the folder `root`, which is made at the first write. Safe from several threads and processes."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._own = self._root / RESERVED
        self._partials = self._own / "partial"
        self._etags = EtagCache(self._own / "etags")
        self._swept = False

    @property
    def uri(self) -> str:
        """The folder as a file:// address."""
        return self._root.as_uri()

    def put(
        self,
        key: str,
        data: bytes | Path,
        *,
        md5: str | None = None,
        if_match: str | None = None,
        if_absent: bool = False,
    ) -> str:
        """Store the bytes whole; raises DigestMismatch, PreconditionFailed, StoreUnavailable, with nothing stored."""
        path = self._path(key)
        if isinstance(data, Path) and not data.is_file():
            raise StoreError(f"store key {key!r}: got {data}, expected a file to read")
        with _translated(path), self._partial() as partial:
            with partial.open("wb") as file:
                etag = copy_hashed(data, file)
            if md5 is not None and md5.lower() != etag:
                raise DigestMismatch(f"store key {key!r}: got bytes with MD5 {etag}, expected {md5.lower()}")
            with self._locked():
                self._check_condition(key, path, if_match, if_absent)
                path.parent.mkdir(parents=True, exist_ok=True)
                partial.replace(path)
                self._etags.remember(key, path.stat(), etag)
        return etag

    def get(self, key: str) -> bytes:
        """The object's bytes; raises ObjectNotFound."""
        path = self._path(key)
        with _translated(path, key):
            return path.read_bytes()

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """The object's bytes and their etag; raises ObjectNotFound."""
        data = self.get(key)
        return data, hash_bytes(data)

    def download(self, key: str, path: Path) -> None:
        """Write the object to `path`, whole or not at all; raises ObjectNotFound."""
        source = self._path(key)
        partial = path.with_name(f".{path.name[:64]}.{os.getpid()}.{time.monotonic_ns()}")
        with _translated(source, key), source.open("rb") as reader, _removed_after(partial), _translated(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("xb") as writer:
                copy_hashed(reader, writer)
            partial.replace(path)

    def head(self, key: str) -> ObjectInfo | None:
        """What is stored under the key, None when nothing is."""
        path = self._path(key)
        try:
            with _translated(path, key):
                return self._info(key, path)
        except ObjectNotFound:
            return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in key order; one that vanishes meanwhile is left out."""
        folder = check_prefix(prefix).rpartition("/")[0]
        with _translated(self._root / folder):
            for key in self._keys(folder, prefix):
                info = self.head(key)
                if info is not None:
                    yield info

    def delete(self, key: str) -> None:
        """Forget the object and the folders that it leaves empty."""
        path = self._path(key)
        with _translated(path):
            if not path.is_file():
                return
            with self._locked():
                path.unlink(missing_ok=True)
                self._etags.forget(key)
                _remove_empty(path.parent, self._root)

    def uri_of(self, key: str) -> str:
        """The object's or folder's file:// address."""
        return (self._root / check_prefix(key)).as_uri()

    def close(self) -> None:
        """Nothing is held between calls."""

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _info(self, key: str, path: Path) -> ObjectInfo:
        stat, etag = self._etags.of(key, path)
        return ObjectInfo(key=key, size=stat.st_size, etag=etag, modified_at_ns=stat.st_mtime_ns)

    def _check_condition(self, key: str, path: Path, if_match: str | None, if_absent: bool) -> None:
        if not if_absent and if_match is None:
            return
        etag = self._etags.of(key, path)[1] if path.exists() else None
        if if_absent and etag is not None:
            raise PreconditionFailed(f"store key {key!r}: got an object with etag {etag}, expected none")
        if if_match is not None and etag != if_match:
            raise PreconditionFailed(f"store key {key!r}: got etag {etag}, expected {if_match}")

    def _keys(self, folder: str, prefix: str) -> Iterator[str]:
        try:
            entries = list(os.scandir(self._root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        # A folder sorts with its '/', as its keys do.
        names = sorted(e.name + "/" if e.is_dir(follow_symlinks=False) else e.name for e in entries)
        for name in names:
            key = f"{folder}/{name}" if folder else name
            if key == f"{RESERVED}/" or not (key.startswith(prefix) or prefix.startswith(key)):
                continue
            if name.endswith("/"):
                yield from self._keys(key.removesuffix("/"), prefix)
            else:
                yield key

    @contextmanager
    def _partial(self) -> Iterator[Path]:
        self._partials.mkdir(parents=True, exist_ok=True)
        if not self._swept:
            self._swept = True
            _sweep(self._partials)
        path = self._partials / f"{os.getpid()}-{os.urandom(8).hex()}"
        with _removed_after(path):
            yield path

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock; it is held for microseconds, so waiting long means a stopped process."""
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        self._own.mkdir(parents=True, exist_ok=True)
        with (self._own / "lock").open("a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        message = f"store {self._root}: another process has held {file.name} for {LOCK_TIMEOUT_S:.0f} s"
                        raise StoreUnavailable(f"{message}; end that process") from error
                    time.sleep(LOCK_POLL_S)
            yield


@contextmanager
def _translated(path: Path, key: str | None = None) -> Iterator[None]:
    """Turn the system's errors into the store's; with `key`, a missing file means a missing object."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        if key is not None:
            raise ObjectNotFound(f"store: no object {key!r} at {path}") from error
        if isinstance(error, FileNotFoundError):
            raise StoreUnavailable(f"store file {path}: {error.strerror}; was the store's folder removed?") from error
        raise StoreError(f"store file {path}: {error.strerror}; an object and a folder cannot share a name") from error
    except OSError as error:
        raise StoreUnavailable(f"store file {path}: {error.strerror}; {_advice(error)}") from error


def _advice(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "free space on this file system"
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return "make the folder writable"
    return "check the disk"


@contextmanager
def _removed_after(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed left behind."""
    oldest = time.time() - PARTIAL_MAX_AGE_S
    for path in folder.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()


def _remove_empty(folder: Path, root: Path) -> None:
    with suppress(OSError):
        while folder != root:
            folder.rmdir()
            folder = folder.parent
