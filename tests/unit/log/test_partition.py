"""What only the embedded log promises: damage, clocks, files."""

import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from offbeat.errors import LogDamaged, LogUnavailable
from offbeat.log import Entry, Record
from offbeat.log.sqlite import SqliteLog

PAGE = 65536
ROWS_PER_PAGE = 8  # of the 10 kB records below


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    opened = SqliteLog(tmp_path / "log", num_partitions=1, max_record_bytes=1 << 20)
    yield opened
    opened.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "log" / "partition-000.db"


def append(log: SqliteLog, *payloads: bytes) -> None:
    log.append("trajectories", 0, [Entry(headers={"n": str(len(p))}, payload=p) for p in payloads])


def read_all(log: SqliteLog) -> list[Record]:
    at, found = log.begin("trajectories", 0), []
    while records := log.read("trajectories", 0, at, max_records=3):
        found += records
        at = records[-1].position + 1
    return found


def read_until_refused(log: SqliteLog) -> tuple[list[Record], LogDamaged]:
    found: list[Record] = []
    while True:
        try:
            records = log.read("trajectories", 0, len(found), max_records=7)
        except LogDamaged as error:
            return found, error
        assert records, "the stream ended silently"
        found += records


def change(file: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(file) as db:
        db.execute(statement, values)
    db.close()


def overwrite_leaf_page(log: SqliteLog, file: Path, position: int) -> None:
    """Destroy the page that holds a row, found by its marker, in the main file."""
    log.close()
    data = bytearray(file.read_bytes())
    at = data.index(b"marker-%d-" % position) // PAGE * PAGE
    data[at : at + 8] = b"\xff" * 8
    file.write_bytes(data)


def reopened(file: Path) -> SqliteLog:
    return SqliteLog(file.parent, num_partitions=1, max_record_bytes=1 << 20)


def test_positions_start_at_zero_and_are_consecutive(log: SqliteLog) -> None:
    append(log, b"a", b"b")
    append(log, b"c")
    assert [record.position for record in read_all(log)] == [0, 1, 2]
    assert log.end("trajectories", 0) == 3


def test_all_files_are_made_at_first_use_and_none_before(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", num_partitions=2, max_record_bytes=1 << 20)
    assert not (tmp_path / "log").exists()
    log.end("trajectories", 1)
    log.close()
    expected = {"partition-000.db", "partition-001.db", "plan.db", "quarantine.db"}
    assert {path.name for path in (tmp_path / "log").iterdir()} == expected
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_files_are_in_write_ahead_mode_with_large_pages(log: SqliteLog, file: Path) -> None:
    append(log, b"a")
    with sqlite3.connect(file) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA page_size").fetchone() == (PAGE,)
    db.close()


def test_trimmed_pages_are_used_again(log: SqliteLog, file: Path) -> None:
    for _ in range(3):
        for _ in range(20):
            append(log, bytes(500_000))
        log.trim("trajectories", 0, log.end("trajectories", 0))
    log.close()
    assert file.stat().st_size < 20 * 500_000 * 1.5


def test_rows_left_over_by_an_interrupted_trim_are_below_begin(log: SqliteLog, file: Path) -> None:
    append(log, b"a", b"b", b"c")
    change(file, "UPDATE bounds SET begin = 2")
    assert [record.payload for record in read_all(log)] == [b"c"]
    assert log.position_at("trajectories", 0, 0) == 2
    log.trim("trajectories", 0, 2)
    assert log.end("trajectories", 0) == 3


@pytest.mark.parametrize("text", [b'{"n": "1', b"\xff\xfe{}", b"[1]", b'{"n": 1}', b"", None, 7])
def test_unreadable_headers_come_back_empty(log: SqliteLog, file: Path, text: object) -> None:
    append(log, b"a", b"b")
    change(file, "CREATE TABLE loose (position INTEGER PRIMARY KEY, appended_at_ns, headers, payload)")
    change(file, "INSERT INTO loose SELECT * FROM records")
    change(file, "UPDATE loose SET headers = ? WHERE position = 0", text)
    change(file, "DROP TABLE records")
    change(file, "ALTER TABLE loose RENAME TO records")
    first, second = read_all(log)
    assert (first.headers, first.payload) == ({}, b"a")
    assert (second.headers, second.payload) == ({"n": "1"}, b"b")


def test_a_missing_row_comes_back_as_an_empty_record(log: SqliteLog, file: Path) -> None:
    append(log, b"a", b"b", b"c")
    change(file, "DELETE FROM records WHERE position = 1")
    assert [(r.position, r.headers, r.payload) for r in read_all(log)] == [
        (0, {"n": "1"}, b"a"),
        (1, {}, b""),
        (2, {"n": "1"}, b"c"),
    ]


def test_an_impossible_jump_of_positions_is_named(log: SqliteLog, file: Path) -> None:
    append(log, b"a", b"b")
    change(file, "UPDATE records SET position = 1 << 40 WHERE position = 1")
    with pytest.raises(LogDamaged, match=rf"partition-000\.db, position 1: damaged: followed by position {1 << 40}"):
        log.read("trajectories", 0, 1)


def test_a_damaged_page_loses_its_rows_and_no_others(log: SqliteLog, file: Path) -> None:
    append(log, *[b"marker-%d-" % i + bytes(10_000) for i in range(40)])
    overwrite_leaf_page(log, file, 20)
    damaged = reopened(file)
    records = read_all(damaged)
    assert [record.position for record in records] == list(range(40))
    lost = [record.position for record in records if not record.payload]
    assert 20 in lost
    assert len(lost) <= ROWS_PER_PAGE
    assert all(record.headers == {} for record in records if record.position in lost)
    assert all(record.payload == b"marker-%d-" % i + bytes(10_000) for i, record in enumerate(records) if i not in lost)
    damaged.close()


def test_damage_at_the_end_is_raised_where_reading_must_stop(log: SqliteLog, file: Path) -> None:
    append(log, *[b"marker-%d-" % i + bytes(10_000) for i in range(40)])
    overwrite_leaf_page(log, file, 39)
    damaged = reopened(file)
    found, error = read_until_refused(damaged)
    assert f"partition-000.db, position {len(found)}: " in str(error)
    assert [record.position for record in found] == list(range(len(found)))
    assert len(found) >= 40 - ROWS_PER_PAGE
    with pytest.raises(LogDamaged):
        append(damaged, b"x")
    damaged.close()


def test_a_held_file_is_unavailable_and_nothing_is_appended(
    log: SqliteLog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.log.database.BUSY_TIMEOUT_S", 0.01)
    append(log, b"a")
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    impatient = reopened(file)
    with pytest.raises(LogUnavailable, match="another process holds it"):
        append(impatient, b"b")
    assert len(read_all(impatient)) == 1
    holder.execute("ROLLBACK")
    append(impatient, b"b")
    assert len(read_all(impatient)) == 2
    holder.close()
    impatient.close()


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    log = SqliteLog(tmp_path / "file" / "log", num_partitions=1, max_record_bytes=1 << 20)
    with pytest.raises(LogUnavailable, match=r"partition-000\.db"):
        append(log, b"a")


def test_a_read_only_disk_is_unavailable(log: SqliteLog, file: Path) -> None:
    append(log, b"a")
    log.close()
    bound = subprocess.run(["mount", "--bind", file.parent, file.parent], capture_output=True, text=True, check=False)
    if bound.returncode:
        pytest.skip(f"mounting needs root: {bound.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", file.parent], check=True)
        with pytest.raises(LogUnavailable, match="writable"):
            append(reopened(file), b"b")
    finally:
        subprocess.run(["umount", "-l", file.parent], check=True)


def test_position_at_never_lies_above_a_younger_record(log: SqliteLog, clock: Callable[[int], None]) -> None:
    for at in (100, 200, 50, 300, 60, 400):  # the clock jumps back twice
        clock(at)
        append(log, b"x")
    times = [record.appended_at_ns for record in read_all(log)]
    assert times == [100, 200, 50, 300, 60, 400]
    found = {at: log.position_at("trajectories", 0, at) for at in (0, 100, 101, 201, 300, 301, 401)}
    assert found == {0: 0, 100: 0, 101: 1, 201: 3, 300: 3, 301: 5, 401: 6}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def set_to(now_ns: int) -> None:
        monkeypatch.setattr("offbeat.log.partition.time.time_ns", lambda: now_ns)

    return set_to


def test_a_half_made_log_of_a_killed_creator_is_no_obstacle(log: SqliteLog, file: Path) -> None:
    half = file.parent.with_name(".log.killed") / "log"
    half.mkdir(parents=True)
    (half / file.name).write_bytes(b"half")
    append(log, b"a")
    assert len(read_all(log)) == 1


def test_payloads_are_not_loaded_beyond_the_limit(log: SqliteLog) -> None:
    append(log, *[bytes(1 << 20)] * 30)
    read_before = _bytes_read()
    assert len(log.read("trajectories", 0, 0, max_bytes=1 << 20)) == 1
    assert log.read("trajectories", 0, 0, payloads=False)[-1].position == 29
    assert _bytes_read() - read_before < 15 << 20


def _bytes_read() -> int:
    with open(f"/proc/{os.getpid()}/io", encoding="ascii") as counters:
        return int(counters.readline().split()[1])


def test_records_move_to_the_main_file_while_the_log_is_open(log: SqliteLog, file: Path) -> None:
    deadline = time.monotonic() + 30
    while file.stat().st_size < 10 << 20 if file.exists() else True:
        assert time.monotonic() < deadline
        append(log, bytes(1 << 20))
    assert all(len(record.payload) == 1 << 20 for record in read_all(log))
    log.close()
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name, "plan.db", "quarantine.db"]
