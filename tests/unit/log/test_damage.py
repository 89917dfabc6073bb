"""A damaged, exchanged or lost file of the embedded log is an error with a name, no empty log and no endless wait."""

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from offbeat.errors import LogDamaged, LogError, LogUnavailable
from offbeat.log import Entry
from offbeat.log.retry import retrying
from offbeat.log.sqlite import SqliteLog

PAGE = 65536
REMEDY = "put back the run's folder and its part of the store from one backup, or start a new run"

Operation = Callable[[SqliteLog], object]
OPERATIONS: dict[str, Operation] = {
    "append": lambda log: log.append("trajectories", 0, [Entry(headers={}, payload=b"x")]),
    "read": lambda log: log.read("trajectories", 0, 0),
    "begin": lambda log: log.begin("trajectories", 0),
    "end": lambda log: log.end("trajectories", 0),
    "trim": lambda log: log.trim("trajectories", 0, 1),
    "position_at": lambda log: log.position_at("trajectories", 0, 0),
}


def opened(folder: Path) -> SqliteLog:
    return SqliteLog(folder, num_partitions=2, max_record_bytes=1 << 20)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A partition of 40 records on 10 pages, closed."""
    log = opened(tmp_path / "log")
    log.append("trajectories", 0, [Entry(headers={}, payload=b"%d" % i + bytes(10_000)) for i in range(40)])
    log.close()
    return tmp_path / "log" / "partition-000.db"


@pytest.fixture
def log(file: Path) -> Iterator[SqliteLog]:
    log = opened(file.parent)
    yield log
    log.close()


@pytest.fixture(params=list(OPERATIONS))
def operation(request: pytest.FixtureRequest) -> Operation:
    return OPERATIONS[request.param]


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


# 0: the name of the format; 16: the page size; 19: the write-ahead mode; 28: the number of pages; 47: the version of
# the schema's format; 100: the kind of the first page; 103: its number of cells.
@pytest.mark.parametrize("at", [0, 16, 19, 28, 47, 100, 103])
def test_a_flipped_byte_of_the_first_page_is_damage(file: Path, log: SqliteLog, operation: Operation, at: int) -> None:
    flip(file, at)
    with pytest.raises(LogDamaged, match=rf"log file {file}.*: damaged: .*{REMEDY}"):
        operation(log)


def test_a_header_that_forbids_writing_is_damage_and_not_a_lack_of_rights(file: Path, log: SqliteLog) -> None:
    flip(file, 18)
    assert len(log.read("trajectories", 0, 0)) == 40
    with pytest.raises(LogDamaged, match="no file of ours"):
        OPERATIONS["append"](log)


@pytest.mark.parametrize("size", [0, 1, 100, PAGE - 1, PAGE, 3 * PAGE + 100, 9 * PAGE])
def test_a_truncated_file_is_damage(file: Path, log: SqliteLog, operation: Operation, size: int) -> None:
    cut(file, size)
    with pytest.raises(LogDamaged, match=str(file)):
        operation(log)


def test_something_else_in_its_place_is_damage(file: Path, log: SqliteLog, operation: Operation) -> None:
    file.write_bytes(b"not a database" * 1000)
    with pytest.raises(LogDamaged, match="not a database"):
        operation(log)


def test_a_lost_bound_is_damage(file: Path, log: SqliteLog, operation: Operation) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("DELETE FROM bounds")
    with pytest.raises(LogDamaged, match="first position"):
        operation(log)


def test_a_deleted_file_is_damage_and_no_empty_one_takes_its_place(
    file: Path, log: SqliteLog, operation: Operation
) -> None:
    file.unlink()
    for _ in range(2):
        with pytest.raises(LogDamaged, match=rf"{file}: damaged: the file is gone; {REMEDY}"):
            operation(log)
    assert not file.exists()
    assert log.end("trajectories", 1) == 0


def test_a_file_deleted_under_an_open_log_is_damage(file: Path, log: SqliteLog, operation: Operation) -> None:
    log.append("trajectories", 0, [Entry(headers={}, payload=b"x")])
    file.unlink()
    with pytest.raises(LogDamaged, match="the file is gone"):
        operation(log)
    log.close()
    assert not file.exists()


def test_a_file_exchanged_under_an_open_log_is_damage(
    file: Path, log: SqliteLog, operation: Operation, tmp_path: Path
) -> None:
    shutil.copy(file, tmp_path / "copy")
    log.append("trajectories", 0, [Entry(headers={}, payload=b"x")])
    (tmp_path / "copy").replace(file)
    with pytest.raises(LogDamaged, match="another file was put in its place"):
        operation(log)


def test_a_file_cut_under_an_open_log_is_damage(file: Path, log: SqliteLog) -> None:
    assert len(log.read("trajectories", 0, 0, payloads=False)) == 40
    with file.open("r+b") as opened_file:
        opened_file.truncate(PAGE)
    with pytest.raises(LogDamaged, match=str(file)):
        log.read("trajectories", 0, 0)


def test_an_older_copy_is_damage_for_a_reader_who_was_further(file: Path, log: SqliteLog, tmp_path: Path) -> None:
    shutil.copy(file, tmp_path / "copy")
    end = log.append("trajectories", 0, [Entry(headers={}, payload=b"x")] * 2)
    log.close()
    (tmp_path / "copy").replace(file)
    again = opened(file.parent)
    assert again.read("trajectories", 0, end - 2) == []
    with pytest.raises(LogDamaged, match=f"position {end}: damaged: it ends at position {end - 2}, but was longer"):
        again.read("trajectories", 0, end)
    again.close()


def test_a_run_folder_that_is_away_is_waited_for_and_not_made_anew(file: Path, log: SqliteLog, tmp_path: Path) -> None:
    home = tmp_path / "home" / "run"
    home.mkdir(parents=True)
    shutil.move(file.parent, home / "log")
    moved = opened(home / "log")
    assert moved.end("trajectories", 0) == 40
    home.rename(tmp_path / "elsewhere")
    for operation in OPERATIONS.values():
        with pytest.raises(LogUnavailable):
            operation(moved)
        with pytest.raises(LogUnavailable):
            operation(opened(home / "log"))
    assert not home.exists()
    (tmp_path / "elsewhere").rename(home)
    assert moved.end("trajectories", 0) == 40
    moved.close()


def test_damage_is_not_tried_again(file: Path, log: SqliteLog) -> None:
    file.unlink()
    failures: list[str] = []
    with pytest.raises(LogDamaged):
        retrying(lambda: log.end("trajectories", 0), stop=threading.Event(), on_failure=failures.append)
    assert failures == []


def test_damage_is_no_absence() -> None:
    assert issubclass(LogDamaged, LogError)
    assert not issubclass(LogDamaged, LogUnavailable)
