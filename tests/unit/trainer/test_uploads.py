"""Uploads in the background: what arrives, what is cleaned up behind it, and what ends them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from offbeat.config import parse_config
from offbeat.errors import Fenced, StoreError, StoreUnavailable
from offbeat.ledger import Cursor, Resolved
from offbeat.log import Entry, Log
from offbeat.runs import Run
from offbeat.store import Store
from offbeat.trainer import checkpoint as checkpoints
from offbeat.trainer.checkpoint import Checkpoint
from offbeat.trainer.uploads import Uploader

DEADLINE_S = 30.0
CONFIG = {
    "name": "small",
    "generator": {"num_generators": 1},
    "strategy": {"keep_checkpoints": 2},
    "log": {"retention_s": 1e-6},
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(parse_config(CONFIG), run_id="r", home=tmp_path)


@pytest.fixture
def store(run: Run) -> Iterator[Store]:
    store = run.open_store()
    yield store
    store.close()


@pytest.fixture
def log(run: Run) -> Iterator[Log]:
    log = run.open_log()
    log.append("trajectories", 0, [Entry(headers={}, payload=b"x")] * 10)
    yield log
    log.close()


@pytest.fixture
def uploader(run: Run, store: Store, log: Log) -> Iterator[Uploader]:
    uploader = Uploader(run, store, log, epoch=1)
    yield uploader
    uploader.close()


def write(run: Run, step: int) -> Checkpoint:
    """A checkpoint that has two records more behind it with every step."""
    resolved = Resolved(step=step, version=step, cursors={0: Cursor(2 * step, 1)})
    return checkpoints.write(run, resolved, lambda folder: None, epoch=1, digest="d")


def test_after_each_upload_old_checkpoints_and_the_log_before_the_oldest_kept_one_go(
    run: Run, store: Store, log: Log, uploader: Uploader
) -> None:
    for step, kept in ((1, [1]), (2, [1, 2]), (3, [2, 3]), (4, [3, 4])):
        uploader.submit(write(run, step))
        uploader.drain(DEADLINE_S)
        assert checkpoints.stored_steps(store) == kept
        assert [c.step for c in checkpoints.list_checkpoints(run.checkpoints)] == kept
        assert log.begin("trajectories", 0) == 2 * kept[0]  # that record is half used, it stays


def test_a_newer_trainer_ends_this_one(run: Run, store: Store, uploader: Uploader) -> None:
    checkpoints.upload(write(run, 1), store, epoch=2)
    uploader.submit(write(run, 2))
    with pytest.raises(Fenced):
        uploader.drain(DEADLINE_S)
    with pytest.raises(Fenced):
        uploader.submit(write(run, 3))


def test_a_damaged_log_keeps_no_checkpoint_from_the_store(
    run: Run, store: Store, log: Log, uploader: Uploader, caplog: pytest.LogCaptureFixture
) -> None:
    (run.folder / "log" / "partition-000.db").unlink()
    uploader.submit(write(run, 1))
    uploader.drain(DEADLINE_S)
    assert checkpoints.stored_steps(store) == [1]
    assert uploader.trouble == ""
    assert "partition 0 is not trimmed: log file" in caplog.text


def test_a_store_that_is_away_is_waited_for(
    run: Run, store: Store, uploader: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.trainer.uploads.RETRY_S", 0.01)
    original = checkpoints.upload

    def refuse(*_: object, **__: object) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(checkpoints, "upload", refuse)
    uploader.submit(write(run, 1))
    with pytest.raises(StoreError, match="not in the store after 0 s: "):
        uploader.drain(0.2)
    monkeypatch.setattr(checkpoints, "upload", original)
    uploader.drain(DEADLINE_S)
    assert checkpoints.stored_steps(store) == [1]
    assert uploader.trouble == ""
