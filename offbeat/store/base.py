"""The object store: named bytes, written whole, with conditions for pointers that several writers may move.

Keys are relative, '/'-separated, without '..' or a leading '/'. An etag names one version of one object; only its
equality means anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One stored object. `modified_at_ns` is the store's clock (Unix ns)."""

    key: str
    size: int
    etag: str
    modified_at_ns: int


class Store(Protocol):
    """Named bytes. Every method may raise StoreUnavailable."""

    @property
    def uri(self) -> str:
        """Where this store is, as a person would write it (file:///..., s3://bucket/prefix); no secrets."""

    def put(
        self,
        key: str,
        data: bytes | Path,
        *,
        md5: str | None = None,
        if_match: str | None = None,
        if_absent: bool = False,
    ) -> str:
        """Store the bytes (or the file's bytes) whole and return the new etag.

        md5: hex digest of the bytes, compared with what arrived; raises DigestMismatch, nothing stored.
        if_match: write only over the version with this etag; if_absent: only where there is none.
        Either raises PreconditionFailed when another writer came first.
        """

    def get(self, key: str) -> bytes:
        """The object's bytes; raises ObjectNotFound."""

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """The object's bytes and the etag of exactly these bytes; raises ObjectNotFound."""

    def download(self, key: str, path: Path) -> None:
        """Write the object to `path`, whole or not at all; raises ObjectNotFound."""

    def head(self, key: str) -> ObjectInfo | None:
        """What is stored under the key, None when nothing is."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in key order."""

    def delete(self, key: str) -> None:
        """Forget the object; no error when there is none."""

    def uri_of(self, key: str) -> str:
        """Full address of one object or folder of objects."""

    def close(self) -> None:
        """Give back sockets and files. Safe to call twice."""
