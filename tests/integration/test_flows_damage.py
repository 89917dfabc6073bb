"""A run whose log is damaged or lost in part: both sides end with the error's name, no empty log takes its place."""

import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from flows.lifecycle import run_lifecycle
from offbeat.errors import ChildFailed, LogDamaged
from offbeat.generator import run_generator
from offbeat.ledger import read_account
from offbeat.runs import Run
from offbeat.trainer import run_trainer
from tests.sides import Sides, small_config

ROLES = ("trainer", "generator-0", "generator-1")


def flip_first_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)


def cut_in_half(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "file is not a database": flip_first_byte,
    "database disk image is malformed": cut_in_half,
    "the file is gone": Path.unlink,
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was killed between two checkpoints; not to be changed."""
    run = Run.create(small_config(max_steps=100_000), run_id="killed", home=tmp_path_factory.mktemp("runs"))
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_for_steps(run, at_least=9)
        for role in ROLES:
            sides.kill(role)
    read_account(run)  # What still lies beside the files moves into them.
    return run


@pytest.fixture
def run(killed: Run, tmp_path: Path) -> Run:
    shutil.copytree(killed.home, tmp_path / "runs")
    return Run.open("killed", home=tmp_path / "runs")


def partition(run: Run) -> Path:
    return run.folder / "log" / "partition-000.db"


@pytest.mark.parametrize("found", DAMAGES)
def test_trainer_generator_and_account_refuse_a_damaged_log(run: Run, found: str) -> None:
    DAMAGES[found](partition(run))
    existed = partition(run).exists()
    named = rf"log file {partition(run)}.*: damaged: .*{found}"
    with pytest.raises(LogDamaged, match=named):
        run_trainer(run, stop=threading.Event())
    with pytest.raises(LogDamaged, match=named):
        run_generator(run, 0, stop=threading.Event())
    with pytest.raises(LogDamaged, match=named):
        read_account(run)
    assert partition(run).exists() == existed


@pytest.mark.chaos
def test_trainer_refuses_an_older_copy_of_one_partition(run: Run) -> None:
    with closing(sqlite3.connect(partition(run), isolation_level=None)) as db:
        db.execute("DELETE FROM records WHERE position > 0")
    with pytest.raises(LogDamaged, match="but was longer"):
        run_trainer(run, stop=threading.Event())


def test_trainer_and_account_refuse_a_log_without_its_plan(run: Run) -> None:
    (run.folder / "log" / "plan.db").unlink()
    with pytest.raises(LogDamaged, match=r"plan\.db: damaged: the file is gone"):
        run_trainer(run, stop=threading.Event())
    with pytest.raises(LogDamaged, match=r"plan\.db"):
        read_account(run)


def test_a_partition_deleted_under_a_working_run_ends_it(run: Run) -> None:
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_for_steps(run, at_least=read_account(run).steps + 3)
        partition(run).unlink()
        assert sides.wait("trainer") == 1
        assert f"LogDamaged: log file {partition(run)}: damaged: the file is gone" in sides.output("trainer")
    assert not partition(run).exists()


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_the_lifecycle_fails_at_once_with_the_damages_name(
    run: Run, prefect_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFBEAT_HOME", str(run.home))
    partition(run).unlink()
    with pytest.raises(ChildFailed, match=r"gave up after 1 attempt; the last one refused: LogDamaged: .*is gone"):
        run_lifecycle("unused", run_id=run.run_id, resume=True)
