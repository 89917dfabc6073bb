"""The log's contract, one suite over every backend."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import pytest

from offbeat.errors import LogDamaged, LogError, LogUnavailable, PositionOutOfRange, RecordTooLarge
from offbeat.log import CHANNELS, Entry, Log, Record, open_log

MAX_RECORD_BYTES = 100_000
DEADLINE_S = 60.0

StartChild = Callable[[str], "Popen[str]"]


@dataclass(frozen=True, kw_only=True)
class Backend:
    """How this process and others open the same log."""

    kind: str
    folder: Path

    @property
    def source(self) -> str:
        folder = f"folder=Path({str(self.folder)!r})"
        return f"open_log({self.kind!r}, {folder}, num_partitions=2, max_record_bytes={MAX_RECORD_BYTES})"

    def open(self) -> Log:
        return eval(self.source, {"open_log": open_log, "Path": Path})

    def child(self, body: str) -> str:
        imports = "import sys\nfrom pathlib import Path\nfrom offbeat.log import Entry, open_log\n"
        return f"{imports}log = {self.source}\n{body}\n"


@pytest.fixture(params=["sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return Backend(kind=request.param, folder=tmp_path / "log")


@pytest.fixture
def log(backend: Backend) -> Iterator[Log]:
    opened = backend.open()
    yield opened
    opened.close()


def entries(*payloads: bytes) -> list[Entry]:
    return [Entry(headers={"digest": hashlib.md5(payload).hexdigest()}, payload=payload) for payload in payloads]


def read_all(log: Log, position: int | None = None) -> list[Record]:
    """Everything in partition 0 from `position` (default: begin), through as many reads as it takes."""
    at = log.begin("trajectories", 0) if position is None else position
    found: list[Record] = []
    while records := log.read("trajectories", 0, at, max_records=7):
        found += records
        at = records[-1].position + 1
    return found


def payloads(records: list[Record]) -> list[bytes]:
    return [record.payload for record in records]


def test_says_its_bounds(log: Log) -> None:
    assert (log.num_partitions, log.max_record_bytes) == (2, MAX_RECORD_BYTES)


def test_fresh_log_is_empty_and_starts_at_zero(log: Log) -> None:
    for channel in CHANNELS:
        assert log.read(channel, 0, 0) == []
        assert log.begin(channel, 0) == log.end(channel, 0) == 0


def test_a_record_comes_back_as_it_was_appended(log: Log) -> None:
    before = time.time_ns()
    end = log.append("trajectories", 1, [Entry(headers={"näme": "wört", "empty": ""}, payload=b"\0\xff" * 9)])
    (record,) = log.read("trajectories", 1, 0)
    assert (record.channel, record.partition) == ("trajectories", 1)
    assert (record.headers, record.payload) == ({"näme": "wört", "empty": ""}, b"\0\xff" * 9)
    assert record.position < end
    assert abs(record.appended_at_ns - before) < 60e9


def test_empty_payload_and_empty_headers_are_records_too(log: Log) -> None:
    log.append("trajectories", 0, [Entry(headers={}, payload=b""), *entries(b"next")])
    first, second = read_all(log)
    assert (first.headers, first.payload, second.payload) == ({}, b"", b"next")


def test_records_keep_their_order_and_positions_grow(log: Log) -> None:
    log.append("trajectories", 0, entries(b"a", b"b"))
    end = log.append("trajectories", 0, entries(b"c"))
    records = read_all(log)
    assert payloads(records) == [b"a", b"b", b"c"]
    positions = [record.position for record in records]
    assert positions == sorted(set(positions))
    assert positions[-1] < end
    assert positions[-1] < log.end("trajectories", 0) <= end


def test_channels_and_partitions_are_apart(log: Log) -> None:
    log.append("trajectories", 0, entries(b"t0"))
    log.append("trajectories", 1, entries(b"t1"))
    log.append("plan", 0, entries(b"p"))
    log.append("quarantine", 0, entries(b"q"))
    read = [log.read(channel, part, 0) for channel, part in [("trajectories", 0), ("trajectories", 1)]]
    read += [log.read("plan", 0, 0), log.read("quarantine", 0, 0)]
    assert [payloads(records) for records in read] == [[b"t0"], [b"t1"], [b"p"], [b"q"]]


def test_reading_moves_nothing(log: Log) -> None:
    log.append("trajectories", 0, entries(b"a", b"b"))
    assert log.read("trajectories", 0, 0) == log.read("trajectories", 0, 0)


def test_reading_at_the_end_is_empty_and_beyond_it_is_damage(log: Log) -> None:
    end = log.append("trajectories", 0, entries(b"a"))
    assert log.read("trajectories", 0, end) == []
    with pytest.raises(LogDamaged, match=f"position {end + 1000}.* ends at position {end}"):
        log.read("trajectories", 0, end + 1000)


def test_appending_nothing_writes_nothing(log: Log) -> None:
    end = log.append("trajectories", 0, entries(b"a"))
    assert log.append("trajectories", 0, []) == end
    assert len(read_all(log)) == 1


def test_max_records_bounds_a_read(log: Log) -> None:
    log.append("trajectories", 0, entries(*[bytes([i]) for i in range(10)]))
    assert payloads(log.read("trajectories", 0, 0, max_records=3)) == [b"\0", b"\1", b"\2"]


def test_max_bytes_bounds_a_read_but_one_record_always_comes(log: Log) -> None:
    log.append("trajectories", 0, entries(*[bytes([i]) * 1000 for i in range(5)]))
    assert len(log.read("trajectories", 0, 0, max_bytes=2999)) == 2
    assert len(log.read("trajectories", 0, 0, max_bytes=3000)) == 3
    assert len(log.read("trajectories", 0, 0, max_bytes=1)) == 1


def test_without_payloads_headers_and_positions_still_come(log: Log) -> None:
    log.append("trajectories", 0, entries(b"a" * 50_000, b"b" * 50_000))
    bare = log.read("trajectories", 0, 0, payloads=False)
    full = log.read("trajectories", 0, 0)
    assert payloads(bare) == [b"", b""]
    assert [(r.position, r.headers, r.appended_at_ns) for r in bare] == [
        (r.position, r.headers, r.appended_at_ns) for r in full
    ]


def test_too_large_a_record_is_refused_before_anything_is_written(log: Log) -> None:
    log.append("trajectories", 0, entries(b"x" * MAX_RECORD_BYTES))
    with pytest.raises(RecordTooLarge, match=f"{MAX_RECORD_BYTES + 1}.*{MAX_RECORD_BYTES}"):
        log.append("trajectories", 0, entries(b"small", b"x" * (MAX_RECORD_BYTES + 1)))
    assert len(read_all(log)) == 1


def test_unknown_partition_is_named(log: Log) -> None:
    with pytest.raises(LogError, match="trajectories/2"):
        log.read("trajectories", 2, 0)
    with pytest.raises(LogError, match="plan/1"):
        log.append("plan", 1, entries(b"x"))


def test_trim_moves_begin_and_keeps_the_rest(log: Log) -> None:
    log.append("trajectories", 0, entries(*[bytes([i]) for i in range(200)]))
    cut = read_all(log)[150].position
    log.trim("trajectories", 0, cut)
    assert log.begin("trajectories", 0) == cut
    assert payloads(read_all(log)) == [bytes([i]) for i in range(150, 200)]


def test_reading_below_begin_is_out_of_range(log: Log) -> None:
    end = log.append("trajectories", 0, entries(b"a", b"b"))
    log.trim("trajectories", 0, end - 1)
    with pytest.raises(PositionOutOfRange, match=str(end - 1)):
        log.read("trajectories", 0, 0)
    log.trim("trajectories", 0, end)
    with pytest.raises(PositionOutOfRange):
        log.read("trajectories", 0, end - 1)
    assert log.read("trajectories", 0, end) == []


def test_trim_never_moves_begin_backwards_nor_beyond_the_end(log: Log) -> None:
    end = log.append("trajectories", 0, entries(b"a", b"b", b"c"))
    log.trim("trajectories", 0, end - 1)
    log.trim("trajectories", 0, 0)
    assert log.begin("trajectories", 0) == end - 1
    log.trim("trajectories", 0, end + 1000)
    assert log.begin("trajectories", 0) == log.end("trajectories", 0) == end


def test_positions_are_never_used_again_after_everything_is_trimmed(log: Log, backend: Backend) -> None:
    end = log.append("trajectories", 0, entries(b"a", b"b"))
    log.trim("trajectories", 0, end)
    log.close()
    again = backend.open()
    try:
        assert again.begin("trajectories", 0) == again.end("trajectories", 0) == end
        again.append("trajectories", 0, entries(b"c"))
        (record,) = again.read("trajectories", 0, end)
        assert (record.position >= end, record.payload) == (True, b"c")
    finally:
        again.close()


def test_position_at_finds_the_first_record_of_a_time(log: Log) -> None:
    log.append("trajectories", 0, entries(b"old"))
    old = read_all(log)[0].appended_at_ns
    deadline = time.monotonic() + DEADLINE_S
    while read_all(log)[-1].appended_at_ns <= old + 1_000_000 and time.monotonic() < deadline:
        log.append("trajectories", 0, entries(b"later"))
    records = read_all(log)
    young = next(record for record in records if record.appended_at_ns > old + 1_000_000)
    assert log.position_at("trajectories", 0, 0) == records[0].position
    assert log.position_at("trajectories", 0, young.appended_at_ns) == young.position
    assert log.position_at("trajectories", 0, time.time_ns() + 10**12) == log.end("trajectories", 0)


def test_position_at_of_an_empty_log_is_its_end(log: Log) -> None:
    assert log.position_at("trajectories", 0, 0) == log.end("trajectories", 0)


def test_a_reopened_log_holds_what_it_held(log: Log, backend: Backend) -> None:
    log.append("trajectories", 0, entries(b"a", b"b"))
    before = read_all(log)
    log.close()
    again = backend.open()
    try:
        assert read_all(again) == before
    finally:
        again.close()


def test_close_twice_then_calls_fail_as_unavailable(log: Log) -> None:
    log.append("trajectories", 0, entries(b"a"))
    log.close()
    log.close()
    with pytest.raises(LogUnavailable):
        log.read("trajectories", 0, 0)


def test_one_log_serves_several_threads(log: Log) -> None:
    def append(name: int) -> None:
        for i in range(30):
            log.append("trajectories", 0, entries(b"%d-%d" % (name, i)))
            log.read("trajectories", 0, 0)
            log.end("plan", 0)

    threads = [threading.Thread(target=append, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = payloads(read_all(log))
    for name in range(4):
        assert [p for p in found if p.startswith(b"%d-" % name)] == [b"%d-%d" % (name, i) for i in range(30)]
    assert len(found) == 120


def test_another_process_sees_an_append_at_once(log: Log, backend: Backend, start_child: StartChild) -> None:
    reader = start_child(
        backend.child(
            "for line in sys.stdin:\n"
            "    records = log.read('trajectories', 0, int(line))\n"
            "    print([record.payload.decode() for record in records])"
        )
    )
    at = 0
    for i in range(20):
        end = log.append("trajectories", 0, entries(b"%d" % i))
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(f"{at}\n")
        reader.stdin.flush()
        assert reader.stdout.readline().strip() == f"['{i}']"
        at = end


def test_processes_that_create_and_append_at_once_lose_nothing(backend: Backend, start_child: StartChild) -> None:
    source = backend.child(
        "print('ready')\n"
        "name = sys.stdin.readline().strip()\n"
        "for i in range(25):\n"
        "    log.append('trajectories', 0, [Entry(headers={}, payload=f'{name}-{i}'.encode())])"
    )
    children = [start_child(source) for _ in range(4)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for name, child in enumerate(children):
        assert child.stdin is not None
        child.stdin.write(f"{name}\n")
        child.stdin.flush()
    assert [child.wait(DEADLINE_S) for child in children] == [0] * 4
    log = backend.open()
    try:
        found = payloads(read_all(log))
    finally:
        log.close()
    for name in range(4):
        assert [p for p in found if p.startswith(b"%d-" % name)] == [b"%d-%d" % (name, i) for i in range(25)]
    assert len(found) == 100


def test_killed_writers_leave_every_acknowledged_record_whole_and_once(
    backend: Backend, start_child: StartChild
) -> None:
    source = backend.child(
        "first = int(sys.stdin.readline())\n"
        "for i in range(first, first + 100_000):\n"
        "    pair = [f'{i}-{half}-'.encode() * 3_000 for half in 'ab']\n"
        "    log.append('trajectories', 0, [Entry(headers={'i': str(i)}, payload=payload) for payload in pair])\n"
        "    print(i)"
    )
    acknowledged: list[int] = []
    for life, num_acks in enumerate((1, 40, 17)):
        writer = start_child(source)
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(f"{life * 1000}\n")
        writer.stdin.flush()
        lines = [writer.stdout.readline() for _ in range(num_acks)]
        writer.kill()
        acknowledged += [int(line) for line in lines + writer.stdout.readlines()]
    log = backend.open()
    try:
        records = read_all(log)
    finally:
        log.close()
    found = [int(record.headers["i"]) for record in records]
    assert found[::2] == found[1::2] == sorted(set(found))
    assert set(acknowledged) <= set(found)
    assert len(set(found) - set(acknowledged)) <= 3
    for i, first, second in zip(found[::2], records[::2], records[1::2], strict=True):
        assert payloads([first, second]) == [f"{i}-a-".encode() * 3_000, f"{i}-b-".encode() * 3_000]


def append_until_refused(log: Log) -> tuple[int, LogUnavailable]:
    for num_acks in range(40):
        try:
            log.append("trajectories", 0, entries(bytes(100_000), bytes(100_000)))
        except LogUnavailable as error:
            return num_acks, error
    raise AssertionError("8 MB fitted on a disk of 4 MiB")


def test_full_disk_refuses_the_append_whole_and_recovers(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(2 << 20))
    log = open_log("sqlite", folder=small_disk / "log", num_partitions=1, max_record_bytes=1 << 20)
    try:
        num_acks, error = append_until_refused(log)
        assert "partition-000.db" in str(error)
        assert "free space" in str(error)
        assert len(read_all(log)) == 2 * num_acks
        (small_disk / "ballast").unlink()
        log.append("trajectories", 0, entries(b"room again"))
        assert len(read_all(log)) == 2 * num_acks + 1
    finally:
        log.close()
