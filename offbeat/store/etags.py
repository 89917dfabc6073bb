"""MD5 etags of local files: computed while the bytes pass, remembered for large files, never trusted blindly."""

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 1 << 20

# Reading a smaller file costs no more than looking its etag up.
LARGE_BYTES = 256 << 10


def hash_bytes(data: bytes) -> str:
    """MD5 of the bytes, as lower-case hex."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def copy_hashed(source: bytes | Path | BinaryIO, target: BinaryIO) -> str:
    """Copy all bytes to `target` and return their MD5; a large file is flushed to disk."""
    if isinstance(source, Path):
        with source.open("rb") as reader:
            return copy_hashed(reader, target)
    digest = hashlib.md5(usedforsecurity=False)
    chunks = [source] if isinstance(source, bytes) else iter(lambda: source.read(CHUNK_BYTES), b"")
    for chunk in chunks:
        digest.update(chunk)
        target.write(chunk)
    target.flush()
    if target.tell() >= LARGE_BYTES:
        # The remembered etag must not outlive, in a power cut, the bytes that it speaks of.
        os.fdatasync(target.fileno())
    return digest.hexdigest()


class EtagCache:
    """Etags of large files, kept in one small file each under `folder`, bound to the file's identity and times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, key: str, path: Path) -> tuple[os.stat_result, str]:
        """The file's stat and the etag of the bytes it has now; raises FileNotFoundError."""
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            remembered = self._recall(key, stat)
            if remembered is not None:
                return stat, remembered
            etag = hashlib.file_digest(file, _md5).hexdigest()
        self.remember(key, stat, etag)
        return stat, etag

    def remember(self, key: str, stat: os.stat_result, etag: str) -> None:
        """Keep the etag of a large file; a cache that cannot be written costs time, nothing else."""
        if stat.st_size < LARGE_BYTES:
            return
        path = self._path(key)
        partial = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(f"{_identity(stat)} {etag}")
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)

    def forget(self, key: str) -> None:
        """Drop what is remembered of a deleted object."""
        self._path(key).unlink(missing_ok=True)

    def _recall(self, key: str, stat: os.stat_result) -> str | None:
        if stat.st_size < LARGE_BYTES:
            return None
        try:
            identity, _, etag = self._path(key).read_text(encoding="ascii").rpartition(" ")
        except (OSError, ValueError):
            return None
        return etag if identity == _identity(stat) and len(etag) == 32 else None

    def _path(self, key: str) -> Path:
        # Hashed, so that keys of any length and depth lie flat in one folder.
        return self._folder / hash_bytes(key.encode())


def _identity(stat: os.stat_result) -> str:
    # The change time cannot be set back by whoever changes the bytes and restores the modification time.
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


def _md5() -> "hashlib._Hash":
    return hashlib.md5(usedforsecurity=False)
