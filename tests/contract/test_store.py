"""The store's contract, one suite over every backend."""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import pytest

from offbeat.errors import DigestMismatch, ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable
from offbeat.store import Store, open_store

DEADLINE_S = 60.0
LARGE = bytes(range(256)) * 4096  # 1 MiB

StartChild = Callable[[str], "Popen[str]"]


@dataclass(frozen=True, kw_only=True)
class Backend:
    """How this process and others open the same store."""

    kind: str
    root: Path

    @property
    def source(self) -> str:
        return f"open_store({self.kind!r}, root=Path({str(self.root)!r}))"

    def open(self) -> Store:
        return eval(self.source, {"open_store": open_store, "Path": Path})

    def child(self, body: str) -> str:
        imports = "import sys\nfrom pathlib import Path\nfrom offbeat.store import open_store\n"
        imports += "from offbeat.errors import PreconditionFailed\n"
        return f"{imports}store = {self.source}\n{body}\n"


@pytest.fixture(params=["local"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return Backend(kind=request.param, root=tmp_path / "store")


@pytest.fixture
def store(backend: Backend) -> Iterator[Store]:
    opened = backend.open()
    yield opened
    opened.close()


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def keys(store: Store, prefix: str = "") -> list[str]:
    return [info.key for info in store.list(prefix)]


@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_what_was_put_is_got(store: Store, data: bytes, tmp_path: Path) -> None:
    etag = store.put("a/b/object.bin", data)
    assert store.get("a/b/object.bin") == data
    assert store.get_with_etag("a/b/object.bin") == (data, etag)
    store.download("a/b/object.bin", tmp_path / "down" / "copy")
    assert (tmp_path / "down" / "copy").read_bytes() == data


@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_a_file_is_put_like_its_bytes(store: Store, data: bytes, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(data)
    assert store.put("key", source, md5=md5(data)) == store.put("same", data)
    assert (store.get("key"), source.read_bytes()) == (data, data)


def test_a_file_that_is_not_there_cannot_be_put(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing"):
        store.put("key", tmp_path / "missing")
    assert keys(store) == []


@pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "large"])
def test_head_says_size_etag_and_time(store: Store, data: bytes) -> None:
    etag = store.put("key", data)
    info = store.head("key")
    assert info is not None
    assert (info.key, info.size, info.etag) == ("key", len(data), etag)
    assert abs(info.modified_at_ns - time.time_ns()) < 60e9


def test_equal_etags_mean_equal_bytes(store: Store) -> None:
    first, other = store.put("key", b"one"), store.put("key", b"two")
    assert first != other
    assert store.put("key", b"one") == first


def test_what_is_not_there(store: Store, tmp_path: Path) -> None:
    store.put("a/b", b"x")
    for key in ("none", "a", "a/b/c", "a/none"):
        assert store.head(key) is None
        with pytest.raises(ObjectNotFound, match=key):
            store.get(key)
        with pytest.raises(ObjectNotFound):
            store.get_with_etag(key)
        with pytest.raises(ObjectNotFound):
            store.download(key, tmp_path / "target")
        store.delete(key)
    assert list(tmp_path.glob("*target*")) == []
    assert keys(store) == ["a/b"]


def test_delete_forgets_one_object_and_no_other(store: Store) -> None:
    for key in ("a/b", "a/bc", "d"):
        store.put(key, b"x")
    store.delete("a/b")
    store.delete("a/b")
    assert (store.head("a/b"), keys(store)) == (None, ["a/bc", "d"])
    store.delete("a/bc")
    store.put("a", b"now an object itself")
    assert keys(store) == ["a", "d"]


def test_list_is_in_key_order_and_by_prefix(store: Store) -> None:
    assert keys(store) == []
    put = ["step-10/b", "step-1/z", "step-1.json", "step-1/a", "step-1-x/a", "other", "step-1/sub/deep"]
    for key in put:
        store.put(key, key.encode())
    assert keys(store) == sorted(put)
    assert keys(store, "step-1") == sorted(key for key in put if key.startswith("step-1"))
    assert keys(store, "step-1/") == ["step-1/a", "step-1/sub/deep", "step-1/z"]
    assert keys(store, "step-1/s") == ["step-1/sub/deep"]
    assert keys(store, "none/at/all") == []
    assert [info.size for info in store.list("other")] == [5]
    assert [info.etag for info in store.list("other")] == [store.get_with_etag("other")[1]]


def test_an_object_deleted_while_listing_is_left_out(store: Store) -> None:
    for key in ("a", "b", "c"):
        store.put(key, b"x")
    listing = store.list("")
    assert next(listing).key == "a"
    store.delete("b")
    assert [info.key for info in listing] in (["c"], ["b", "c"])


def test_right_md5_is_taken_and_wrong_md5_stores_nothing(store: Store) -> None:
    store.put("key", b"old", md5=md5(b"old").upper())
    for key in ("key", "fresh"):
        with pytest.raises(DigestMismatch, match=md5(b"meant")):
            store.put(key, b"sent", md5=md5(b"meant"))
    assert (store.get("key"), store.head("fresh")) == (b"old", None)


def test_if_absent_writes_only_where_there_is_none(store: Store) -> None:
    store.put("key", b"first", if_absent=True)
    with pytest.raises(PreconditionFailed, match="key"):
        store.put("key", b"second", if_absent=True)
    assert store.get("key") == b"first"
    store.delete("key")
    store.put("key", b"third", if_absent=True)


@pytest.mark.parametrize("data", [b"one", LARGE], ids=["small", "large"])
def test_if_match_writes_only_over_that_version(store: Store, data: bytes) -> None:
    etag = store.put("key", data)
    newer = store.put("key", b"two", if_match=etag)
    with pytest.raises(PreconditionFailed, match=newer):
        store.put("key", b"late", if_match=etag)
    with pytest.raises(PreconditionFailed):
        store.put("none", b"x", if_match=etag)
    assert (store.get("key"), store.head("none")) == (b"two", None)


@pytest.mark.parametrize(
    "key",
    ["", "/abs", "a//b", "a/", "../up", "a/../b", "a/..", ".", "a/./b", "nul\0", "x" * 300, "y/" * 600 + "z", "\ud800"],
)
def test_a_bad_key_is_a_store_error_that_shows_it(store: Store, key: str) -> None:
    for call in (store.get, store.head, store.delete, lambda key: store.put(key, b"x")):
        with pytest.raises(StoreError, match="key: got"):
            call(key)


def test_unusual_keys_are_taken(store: Store, backend: Backend) -> None:
    unusual = ["ünïcode/日本", "sp ace/%41", ".hidden/..file", "a" * 200]
    for key in unusual:
        store.put(key, key.encode())
    assert keys(store) == sorted(unusual, key=str.encode)
    assert backend.open().get("sp ace/%41") == b"sp ace/%41"


def test_uris_name_store_and_objects(store: Store) -> None:
    store.put("a/b", b"x")
    assert "://" in store.uri
    assert store.uri_of("a/b") == store.uri.rstrip("/") + "/a/b"


def test_close_twice(store: Store) -> None:
    store.close()
    store.close()


def test_of_eight_creating_at_once_one_wins(backend: Backend, start_child: StartChild) -> None:
    source = backend.child(
        "print('ready')\n"
        "name = sys.stdin.readline().strip()\n"
        "for i in range(10):\n"
        "    try:\n"
        "        store.put(f'race/{i}', name.encode(), if_absent=True)\n"
        "        print('won', i)\n"
        "    except PreconditionFailed:\n"
        "        print('lost', i)"
    )
    children = [start_child(source) for _ in range(8)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for name, child in enumerate(children):
        assert child.stdin is not None
        child.stdin.write(f"{name}\n")
        child.stdin.flush()
    results = [child.communicate(timeout=DEADLINE_S)[0].splitlines() for child in children]
    store = backend.open()
    for i in range(10):
        winners = [name for name, lines in enumerate(results) if f"won {i}" in lines]
        assert winners == [int(store.get(f"race/{i}"))]
        assert sum(f"lost {i}" in lines for lines in results) == 7


def test_compare_and_swap_by_several_processes_loses_no_update(backend: Backend, start_child: StartChild) -> None:
    store = backend.open()
    store.put("counter", b"0")
    source = backend.child(
        "done = 0\n"
        "while done < 15:\n"
        "    value, etag = store.get_with_etag('counter')\n"
        "    try:\n"
        "        store.put('counter', str(int(value) + 1).encode(), if_match=etag)\n"
        "        done += 1\n"
        "    except PreconditionFailed:\n"
        "        pass"
    )
    children = [start_child(source) for _ in range(3)]
    assert [child.wait(DEADLINE_S) for child in children] == [0] * 3
    assert store.get("counter") == b"45"


def test_a_reader_sees_whole_versions_only_even_of_a_killed_writer(backend: Backend, start_child: StartChild) -> None:
    writer = start_child(
        backend.child("for i in range(1, 10**6):\n    store.put('key', bytes([i % 256]) * 500_000)\n    print(i)")
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    store = backend.open()
    for _ in range(30):
        data, etag = store.get_with_etag("key")
        assert (len(data), len(set(data)), etag) == (500_000, 1, md5(data))
    writer.kill()
    acknowledged = int(writer.stdout.read().split()[-1])
    data = store.get("key")
    assert data in {bytes([i % 256]) * 500_000 for i in (acknowledged, acknowledged + 1)}
    assert keys(store) == ["key"]
    assert [info.etag for info in store.list("")] == [md5(data)]


def test_full_disk_stores_nothing_and_recovers(small_disk: Path, tmp_path: Path) -> None:
    store = open_store("local", root=small_disk / "store")
    store.put("key", b"old")
    with pytest.raises(StoreUnavailable, match="free space"):
        store.put("key", bytes(6 << 20))
    assert (store.get("key"), keys(store)) == (b"old", ["key"])
    store.put("key", bytes(2 << 20))
    other = open_store("local", root=tmp_path / "other")
    other.put("large", bytes(6 << 20))
    with pytest.raises(StoreUnavailable, match="free space"):
        other.download("large", small_disk / "target")
    assert [path.name for path in small_disk.iterdir()] == ["store"]
