"""What only the embedded store promises: files changed behind its back, leftovers, locks."""

import fcntl
import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from offbeat.errors import PreconditionFailed, StoreError, StoreUnavailable
from offbeat.store.local import LocalStore

LARGE = bytes(range(256)) * 4096  # 1 MiB: its etag is remembered


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "my store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def etag_of(store: LocalStore, key: str) -> str:
    info = store.head(key)
    assert info is not None
    return info.etag


def hashed_files(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one whenever a file is hashed."""
    calls: list[None] = []
    digest = hashlib.file_digest

    def counted(*arguments: object) -> object:
        calls.append(None)
        return digest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("offbeat.store.etags.hashlib.file_digest", counted)
    return calls


def test_nothing_is_created_before_the_first_write(store: LocalStore, root: Path) -> None:
    assert (store.head("a"), list(store.list(""))) == (None, [])
    store.delete("a")
    assert not root.exists()


def test_an_object_is_a_plain_file_and_its_uri_finds_it(store: LocalStore, root: Path) -> None:
    store.put("a/b c.bin", b"bytes")
    assert (root / "a" / "b c.bin").read_bytes() == b"bytes"
    assert store.uri == root.as_uri()
    assert store.uri_of("a/b c.bin") == f"{root.as_uri()}/a/b%20c.bin"
    assert store.uri_of("a/") == f"{root.as_uri()}/a"


def test_etags_are_md5(store: LocalStore) -> None:
    assert [store.put("small", b"x"), store.put("large", LARGE)] == [md5(b"x"), md5(LARGE)]


def test_a_large_etag_is_remembered(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("a/large", LARGE)
    calls = hashed_files(store, monkeypatch)
    assert etag_of(LocalStore(root), "a/large") == md5(LARGE)
    assert [info.etag for info in store.list("a")] == [md5(LARGE)]
    assert calls == []


def test_a_large_file_that_nobody_announced_is_hashed_once(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    (root / "copied").write_bytes(LARGE)
    calls = hashed_files(store, monkeypatch)
    assert [etag_of(store, "copied") for _ in range(3)] == [md5(LARGE)] * 3
    assert len(calls) == 1


def test_a_byte_flipped_in_place_changes_the_etag(store: LocalStore, root: Path) -> None:
    etag = store.put("large", LARGE)
    stat = (root / "large").stat()
    flipped = LARGE[:-1] + b"\0"
    deadline = time.monotonic() + 10
    # The file system's clock ticks in milliseconds: write until it has moved on.
    while (root / "large").stat().st_ctime_ns == stat.st_ctime_ns and time.monotonic() < deadline:
        with (root / "large").open("r+b") as file:
            file.write(flipped)
    os.utime(root / "large", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as if nobody had been here
    assert etag_of(store, "large") == md5(flipped) != etag
    with pytest.raises(PreconditionFailed):
        store.put("large", b"x", if_match=etag)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff\xfe", b"1 2 3 4 short"])
def test_a_damaged_memory_of_etags_is_not_believed(store: LocalStore, root: Path, content: bytes) -> None:
    store.put("large", LARGE)
    (remembered,) = (root / ".offbeat" / "etags").iterdir()
    remembered.write_bytes(content)
    assert etag_of(store, "large") == md5(LARGE)


def test_a_store_without_its_own_folder_still_works(store: LocalStore, root: Path) -> None:
    root.mkdir()
    (root / "foreign").write_bytes(b"x")
    store.delete("foreign")
    assert list(store.list("")) == []


def test_deleting_leaves_no_empty_folders_and_no_memory(store: LocalStore, root: Path) -> None:
    store.put("a/b/c", LARGE)
    store.delete("a/b/c")
    assert [path.name for path in root.iterdir()] == [".offbeat"]
    assert list((root / ".offbeat" / "etags").iterdir()) == []


def test_old_partial_writes_are_removed_and_young_ones_kept(store: LocalStore, root: Path) -> None:
    partials = root / ".offbeat" / "partial"
    partials.mkdir(parents=True)
    for name, age_s in (("old", 7200), ("young", 60)):
        (partials / name).write_bytes(b"half")
        os.utime(partials / name, (time.time() - age_s,) * 2)
    store.put("key", b"x")
    assert [path.name for path in partials.iterdir()] == ["young"]
    assert [info.key for info in store.list("")] == ["key"]


def test_the_stores_own_folder_is_no_key(store: LocalStore) -> None:
    store.put("key", LARGE)
    with pytest.raises(StoreError, match=r"\.offbeat"):
        store.put(".offbeat/lock", b"x")
    assert list(store.list(".off")) == []


def test_an_object_cannot_lie_inside_an_object(store: LocalStore) -> None:
    store.put("a/b", b"x")
    for key in ("a", "a/b/c"):
        with pytest.raises(StoreError, match="cannot share a name"):
            store.put(key, b"y")


def test_a_lock_that_is_never_given_back_is_named(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.store.local.LOCK_TIMEOUT_S", 0.0)
    store.put("key", b"old")
    with (root / ".offbeat" / "lock").open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match=r"\.offbeat/lock"):
            store.put("key", b"new")
    assert store.get("key") == b"old"
    store.put("key", b"new")


def test_a_folder_in_the_way_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="file"):
        LocalStore(tmp_path / "file" / "store").put("key", b"x")


def test_a_read_only_disk_can_be_read_and_refuses_writes(store: LocalStore, root: Path) -> None:
    store.put("key", LARGE)
    bound = subprocess.run(["mount", "--bind", root, root], capture_output=True, text=True, check=False)
    if bound.returncode:
        pytest.skip(f"mounting needs root: {bound.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", root], check=True)
        assert (store.get("key"), etag_of(store, "key")) == (LARGE, md5(LARGE))
        for call in (lambda: store.put("key", b"x"), lambda: store.delete("key")):
            with pytest.raises(StoreUnavailable, match="writable"):
                call()
    finally:
        subprocess.run(["umount", "-l", root], check=True)
