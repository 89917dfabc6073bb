"""What the end of a run keeps and deletes, on a real local store and log, with numbers worked out by hand."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from offbeat.config import parse_config
from offbeat.errors import RegistryUnavailable
from offbeat.ledger import Cursor, Resolved
from offbeat.lifecycle.cleanup import Cleanup, clean_up
from offbeat.log import Entry
from offbeat.registry import Registry
from offbeat.runs import Run, read_status, write_status
from offbeat.store import Store
from offbeat.trainer import checkpoint as checkpoints
from offbeat.trainer.checkpoint import list_checkpoints, stored_steps

NUM_RECORDS = 20
AT_ONCE, IN_A_DAY = 1e-6, 86_400.0


def new_run(home: Path, *, retention_s: float) -> Run:
    """Two generators with 20 records each, five checkpoints of which two are kept."""
    config = {
        "name": "small",
        "generator": {"num_generators": 2},
        "strategy": {"keep_checkpoints": 2},
        "log": {"retention_s": retention_s},
    }
    run = Run.create(parse_config(config), run_id="r", home=home)
    log, store = run.open_log(), run.open_store()
    for partition in (0, 1):
        log.append("trajectories", partition, [Entry(headers={}, payload=b"x")] * NUM_RECORDS)
    for step in range(1, 6):
        checkpoints.upload(write(run, step), store, epoch=1)
    log.close()
    store.close()
    return run


def write(run: Run, step: int) -> checkpoints.Checkpoint:
    """Step n has 3n records of generator 0 behind it, and n of generator 1 and a part of the next."""
    cursors = {0: Cursor(3 * step, 0), 1: Cursor(step, 5)}
    return checkpoints.write(
        run, Resolved(step=step, version=step, cursors=cursors), lambda folder: None, epoch=1, digest="d"
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return new_run(tmp_path, retention_s=AT_ONCE)


@pytest.fixture
def store(run: Run) -> Iterator[Store]:
    store = run.open_store()
    yield store
    store.close()


class FakeRegistry:
    def __init__(self, steps: set[int]) -> None:
        self.steps = steps

    def referenced_steps(self, run_id: str) -> set[int]:
        assert run_id == "r"
        return self.steps


def refers_to(*steps: int) -> Callable[[Run], Registry]:
    return lambda run: FakeRegistry(set(steps))  # type: ignore[return-value]


def away(run: Run) -> Registry:
    raise RegistryUnavailable("no answer")


def begins(run: Run) -> list[int]:
    log = run.open_log()
    try:
        return [log.begin("trajectories", partition) for partition in (0, 1)]
    finally:
        log.close()


def steps_of(run: Run) -> list[int]:
    return [found.step for found in list_checkpoints(run.checkpoints)]


def test_the_newest_stay_and_the_log_from_the_older_of_them_on(run: Run, store: Store) -> None:
    assert clean_up(run, refers_to()) == Cleanup(deleted=(1, 2, 3), trimmed={0: 12, 1: 4})
    assert steps_of(run) == stored_steps(store) == [4, 5]
    assert begins(run) == [12, 4]


def test_what_a_model_version_refers_to_stays_with_the_log_that_it_needs(run: Run, store: Store) -> None:
    assert clean_up(run, refers_to(2)) == Cleanup(deleted=(1, 3), trimmed={0: 6, 1: 2})
    assert steps_of(run) == stored_steps(store) == [2, 4, 5]
    assert begins(run) == [6, 2]


def test_a_pinned_checkpoint_stays(run: Run, store: Store) -> None:
    checkpoints.pin(store, 3, "model small")
    assert clean_up(run, refers_to(5)) == Cleanup(deleted=(1, 2), trimmed={0: 9, 1: 3})
    assert steps_of(run) == stored_steps(store) == [3, 4, 5]


def test_a_second_cleanup_has_nothing_to_do(run: Run) -> None:
    clean_up(run, refers_to())
    assert clean_up(run, refers_to()) == Cleanup(deleted=(), trimmed={})


def test_once_nothing_refers_to_it_a_checkpoint_goes(run: Run) -> None:
    clean_up(run, refers_to(2))
    assert clean_up(run, refers_to()) == Cleanup(deleted=(2,), trimmed={0: 6, 1: 2})


def test_while_the_registry_is_away_no_checkpoint_goes(run: Run, store: Store) -> None:
    assert clean_up(run, away) == Cleanup(deleted=(), trimmed={0: 3, 1: 1})
    assert steps_of(run) == stored_steps(store) == [1, 2, 3, 4, 5]


def test_young_trajectories_stay_whatever_is_resolved(tmp_path: Path) -> None:
    run = new_run(tmp_path, retention_s=IN_A_DAY)
    assert clean_up(run, refers_to()) == Cleanup(deleted=(1, 2, 3), trimmed={})
    assert begins(run) == [0, 0]


def test_a_damaged_checkpoint_is_none_of_those_kept_but_its_stored_copy_is(run: Run, store: Store) -> None:
    (run.checkpoints / "step-000000004" / "state.json").write_text("{}")
    assert clean_up(run, refers_to()) == Cleanup(deleted=(1, 2, 3), trimmed={0: 12, 1: 4})
    assert stored_steps(store) == [4, 5]


def test_a_damaged_checkpoint_that_never_reached_the_store_goes(run: Run, store: Store) -> None:
    for step in (4, 5):
        store.delete(f"checkpoints/step-00000000{step}/MANIFEST.md5")
    (run.checkpoints / "step-000000004" / "state.json").write_text("{}")
    assert clean_up(run, refers_to()) == Cleanup(deleted=(1, 2, 4), trimmed={0: 9, 1: 3})
    assert steps_of(run) == [3, 5]


def test_a_run_that_was_never_trained_asks_no_registry(tmp_path: Path) -> None:
    def refuse(run: Run) -> Registry:
        raise AssertionError("asked")

    run = Run.create(parse_config({"name": "small"}), run_id="r", home=tmp_path)
    assert clean_up(run, refuse) == Cleanup(deleted=(), trimmed={})


def test_what_is_said_of_processes_that_are_gone_is_corrected(run: Run, store: Store) -> None:
    for role, phase in (("trainer", "working"), ("generator-0", "waiting"), ("generator-1", "stopped")):
        write_status(store, role, {"phase": phase, "progress": 7})
    clean_up(run, refers_to())
    status = read_status(store)
    assert {role: said["phase"] for role, said in status.items()} == dict.fromkeys(status, "stopped")
    assert {said["progress"] for said in status.values()} == {7}


def test_a_damaged_partition_keeps_nothing_else_from_being_cleaned(run: Run, store: Store) -> None:
    write_status(store, "trainer", {"phase": "working"})
    (run.folder / "log" / "partition-000.db").unlink()
    assert clean_up(run, refers_to()) == Cleanup(deleted=(1, 2, 3), trimmed={1: 4})
    assert read_status(store)["trainer"]["phase"] == "stopped"
