"""What goes wrong from outside, on real processes: each fault has its named outcome and the account stays exact."""

import fcntl
import os
import signal
import sqlite3
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from offbeat.ledger import PlanView, read_account
from offbeat.log import Entry
from offbeat.runs import Run, read_status
from offbeat.trainer.checkpoint import list_checkpoints, newest_valid, verify
from offbeat.trainer.replay import replay as replay_run
from offbeat.trajectory import RecordHeaders
from tests.sides import DEADLINE_S, Sides, small_config


def new_run(home: Path, **training: object) -> Run:
    return Run.create(small_config(**training), run_id="faulty", home=home)


def append_trouble(run: Run, partition: int) -> int:
    """Append what a broken producer might: a copy of a record under a name of its own, the same once more, and a third
    with a flipped byte. Returns how many trajectories each holds."""
    log = run.open_log()
    try:
        record = log.read("trajectories", partition, log.end("trajectories", partition) - 1)[0]
        own = replace(RecordHeaders.parse(record.headers), incarnation=7, sequence=0)
        broken = bytearray(record.payload)
        broken[len(broken) // 2] ^= 0x10
        copy = Entry(headers=own.to_mapping(), payload=record.payload)
        flipped = Entry(headers=replace(own, sequence=own.count).to_mapping(), payload=bytes(broken))
        log.append("trajectories", partition, [copy, copy, flipped])
    finally:
        log.close()
    return own.count


def freeze_between_writes(run: Run, pid: int) -> None:
    """Stop a process at a moment when it holds no lock that another on this machine would wait for."""
    for _ in range(100):
        os.kill(pid, signal.SIGSTOP)
        if not locked(run):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
    pytest.fail("the trainer always holds a lock")


def locked(run: Run) -> bool:
    try:
        for path in (run.folder / "log").glob("*.db"):
            database = sqlite3.connect(path, timeout=0.5)
            database.execute("BEGIN IMMEDIATE")
            database.rollback()
            database.close()
        with (run.home / "store" / run.run_id / ".offbeat" / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (sqlite3.OperationalError, BlockingIOError):
        return True
    return False


def test_damaged_and_duplicated_records_are_counted_and_the_run_goes_on(tmp_path):
    run = new_run(tmp_path, max_steps=40)
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_for_steps(run, at_least=3)
        for role in ("generator-0", "generator-1"):
            sides.kill(role)
        count = append_trouble(run, 0)
        for role in ("generator-0", "generator-1"):
            sides.start(role)
        sides.wait_until_done(run)
    account = read_account(run)
    assert (account.difference, account.quarantined, account.duplicates) == (0, count, count)
    log = run.open_log()
    (kept,) = log.read("quarantine", 0, log.begin("quarantine", 0))
    log.close()
    assert "checksum" in kept.headers["reason"]
    assert kept.headers["incarnation"] == "7"
    assert replay_run(run).divergences == ()


@pytest.mark.chaos
def test_zombie_trainer_is_fenced(tmp_path):
    run = new_run(tmp_path, max_steps=60)
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_for_steps(run, at_least=5)
        zombie = sides.disown("trainer")
        freeze_between_writes(run, zombie.pid)
        (run.folder / "locks" / "trainer").unlink()  # as on another machine, where no file lock reaches
        sides.start("trainer")
        sides.wait_for_steps(run, at_least=read_account(run).steps + 3)
        os.kill(zombie.pid, signal.SIGCONT)
        assert zombie.wait(DEADLINE_S) == 1
        sides.wait_until_done(run)
    assert "Fenced" in sides.output("trainer")
    account = read_account(run)
    assert (account.difference, account.steps, account.restarts) == (0, 60, 1)
    assert replay_run(run).divergences == ()


@pytest.mark.chaos
def test_termination_keeps_the_state_and_a_new_life_repeats_nothing(tmp_path):
    run = new_run(tmp_path, max_steps=60)
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_for_steps(run, at_least=10)
        assert sides.kill("trainer", signal.SIGTERM) == 0
        saved = newest_valid(run.checkpoints)
        assert saved is not None
        assert saved.step == read_account(run).steps
        sides.start("trainer")
        sides.wait_until_done(run)
    assert read_account(run).difference == 0
    assert replay_run(run).divergences == ()


@pytest.mark.chaos
def test_second_trainer_and_second_generator_are_refused(tmp_path):
    run = new_run(tmp_path, max_steps=100_000)
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_for_steps(run, at_least=1)
        with Sides(run) as others:
            for role in ("trainer", "generator-1"):
                others.start(role)
                assert others.wait(role) == 1
                assert f"already works as {role}" in others.output(role)


@pytest.mark.chaos
def test_newest_checkpoint_damaged_resumes_from_the_one_before(tmp_path):
    run = new_run(tmp_path, max_steps=60)
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_for_steps(run, at_least=24)
        for role in ("trainer", "generator-0", "generator-1"):
            sides.kill(role)
        newest = list_checkpoints(run.checkpoints)[-1]
        victim = newest.folder / "policy" / "policy.safetensors"
        damaged = bytearray(victim.read_bytes())
        damaged[-1] ^= 1
        victim.write_bytes(bytes(damaged))
        assert len(verify(newest.folder)) == 1
        sides.start_all()
        sides.wait_until_done(run)
    assert f"checkpoint of step {newest.step} skipped" in sides.output("trainer")
    assert read_account(run).difference == 0
    assert replay_run(run).divergences == ()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 96 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"cannot mount a small file system here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return ballast
    pytest.fail("the disk took everything")


@pytest.mark.chaos
def test_full_disk_is_waited_for_and_said(small_disk):
    run = new_run(small_disk, max_steps=120)
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_for_steps(run, at_least=5)
        ballast = fill(small_disk)
        urls = {role: status["http"] for role, status in read_status(run.open_store()).items()}
        sides.wait_for(lambda: sides.health(urls["generator-0"])[0] == 503, "generator 0 says that the log is full")
        code, body = sides.health(urls["generator-0"])
        assert code == 503
        assert "partition-000.db" in body
        ballast.unlink()
        sides.wait_until_done(run)
    account = read_account(run)
    assert (account.difference, account.steps) == (0, 120)
    assert replay_run(run).divergences == ()


@pytest.mark.chaos
def test_plan_names_every_life(tmp_path):
    run = new_run(tmp_path, max_steps=20)
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_for_steps(run, at_least=9)
        sides.kill("trainer")
        sides.start("trainer")
        sides.wait_until_done(run)
    log = run.open_log()
    view = PlanView().advance(log)
    log.close()
    assert [row.epoch for row in view.epochs] == [1, 2]
    assert view.epochs[1].resumed_step in (0, 7)
    assert view.events == []
    assert time.time_ns() > view.epochs[1].started_at_ns
