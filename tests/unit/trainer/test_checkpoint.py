"""Checkpoints: written whole, every damage named, the newest valid one found, old ones let go."""

import os
import shutil
import subprocess

import pytest

from offbeat.config import parse_config
from offbeat.errors import CheckpointError, Fenced, StoreError
from offbeat.ledger import Cursor, Resolved, Totals
from offbeat.runs import Run
from offbeat.trainer import checkpoint as checkpoints


@pytest.fixture
def run(tmp_path):
    return Run.create(parse_config({"name": "small"}), run_id="r", home=tmp_path)


@pytest.fixture
def store(run):
    opened = run.open_store()
    yield opened
    opened.close()


def save(folder):
    (folder / "policy").mkdir()
    (folder / "policy" / "policy.safetensors").write_bytes(b"weights")
    (folder / "optimizer.safetensors").write_bytes(b"moments")


def state(step):
    return Resolved(
        step=step,
        version=step,
        cursors={0: Cursor(7, 3), 1: Cursor(9, 0)},
        marks={"0/1": 40},
        totals=Totals(trained=30, stale=2),
        settings={"batch_size": 8.0},
        plan_position=5,
    )


def write(run, step):
    return checkpoints.write(run, state(step), save, epoch=1, digest="d")


def test_md5sum_verifies_it(run):
    made = write(run, 1000)
    assert made.folder.name == "step-000001000"
    done = subprocess.run(["md5sum", "-c", "MANIFEST.md5"], cwd=made.folder, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(
        ["optimizer.safetensors:", "OK", "policy/policy.safetensors:", "OK", "state.json:", "OK"]
    )


def test_state_comes_back_as_it_was(run):
    assert write(run, 4).resolved == state(4)


def test_every_kind_of_damage_is_named(run):
    folder = write(run, 1).folder
    assert checkpoints.verify(folder) == []
    (folder / "optimizer.safetensors").write_bytes(b"momentz")
    (folder / "policy" / "policy.safetensors").unlink()
    (folder / "extra").write_bytes(b"")
    faults = checkpoints.verify(folder)
    assert len(faults) == 3
    assert any("optimizer.safetensors: MD5 is" in fault for fault in faults)
    assert any("policy.safetensors: missing" in fault for fault in faults)
    assert any("extra: not in MANIFEST.md5" in fault for fault in faults)


def test_without_manifest_it_is_no_checkpoint(run):
    folder = write(run, 1).folder
    (folder / "MANIFEST.md5").unlink()
    (fault,) = checkpoints.verify(folder)
    assert "no readable MANIFEST.md5" in fault


def test_empty_manifest_is_a_fault(run):
    folder = write(run, 1).folder
    for path in [folder / "optimizer.safetensors", folder / "state.json", folder / "policy" / "policy.safetensors"]:
        path.unlink()
    (folder / "MANIFEST.md5").write_text("")
    assert checkpoints.verify(folder) == [f"{folder}: MANIFEST.md5 does not name state.json"]


def test_newest_valid_skips_and_names_the_damaged(run):
    write(run, 1)
    write(run, 2)
    third = write(run, 3)
    (third.folder / "state.json").write_text("{}")
    named = []
    found = checkpoints.newest_valid(run.checkpoints, on_fault=named.append)
    assert found is not None
    assert found.step == 2
    assert len(named) == 1
    assert "step 3 skipped" in named[0]


def test_unfinished_folder_is_not_listed(run):
    (run.checkpoints / ".step-000000009.partial").mkdir()
    (run.checkpoints / "step-9").mkdir()
    assert checkpoints.list_checkpoints(run.checkpoints) == []


def test_upload_is_compared_and_pointed_to(run, store):
    made = write(run, 5)
    checkpoints.upload(made, store, epoch=1)
    assert checkpoints.compare_with_store(made, store) == []
    assert checkpoints.stored_steps(store) == [5]
    store.put("checkpoints/step-000000005/state.json", b"other")
    (fault,) = checkpoints.compare_with_store(made, store)
    assert "state.json: MD5 is" in fault


def test_zombie_cannot_move_the_pointer(run, store):
    checkpoints.upload(write(run, 5), store, epoch=2)
    with pytest.raises(Fenced, match="epoch 2, this trainer's is 1"):
        checkpoints.upload(write(run, 6), store, epoch=1)


def test_local_copy_lost_is_fetched_from_the_store(run, store):
    made = write(run, 5)
    checkpoints.upload(made, store, epoch=1)
    shutil.rmtree(made.folder)
    found = checkpoints.newest_anywhere(run, store, on_fault=pytest.fail)
    assert found is not None
    assert checkpoints.verify(found.folder) == []


def test_damaged_local_copy_is_replaced_by_the_stored_one(run, store):
    made = write(run, 5)
    checkpoints.upload(made, store, epoch=1)
    (made.folder / "state.json").write_text("{}")
    named = []
    found = checkpoints.newest_anywhere(run, store, on_fault=named.append)
    assert found is not None
    assert (found.step, found.resolved) == (5, state(5))
    assert len(named) == 1


def test_damaged_everywhere_is_refused(run, store):
    made = write(run, 5)
    checkpoints.upload(made, store, epoch=1)
    store.put("checkpoints/step-000000005/state.json", b"other")
    with pytest.raises(CheckpointError, match="stored checkpoint of step 5 is damaged"):
        checkpoints.download(run, store, 5)


def test_retention_keeps_the_newest_the_referenced_and_the_pinned(run, store):
    for step in range(1, 9):
        checkpoints.upload(write(run, step), store, epoch=1)
    checkpoints.pin(store, 2, "model version 1")
    assert checkpoints.retain(run, store, keep=3, referenced={1}) == [3, 4, 5]
    assert [c.step for c in checkpoints.list_checkpoints(run.checkpoints)] == [1, 2, 6, 7, 8]
    assert checkpoints.stored_steps(store) == [1, 2, 6, 7, 8]


def test_damaged_checkpoint_does_not_push_out_a_valid_one(run, store):
    for step in (1, 2, 3):
        write(run, step)
    (run.checkpoints / "step-000000002" / "state.json").write_text("{}")
    assert checkpoints.retain(run, store, keep=2) == [2]
    assert [c.step for c in checkpoints.list_checkpoints(run.checkpoints)] == [1, 3]


def test_disk_that_refuses_leaves_no_half_checkpoint(run):
    def refuse(folder):
        (folder / "a").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left"):
        checkpoints.write(run, state(1), refuse, epoch=1, digest="d")
    assert list(run.checkpoints.iterdir()) == []


def test_stored_copy_that_arrives_damaged_is_an_error(run, store, monkeypatch):
    made = write(run, 5)
    monkeypatch.setattr(checkpoints, "compare_with_store", lambda *_: ["state.json: MD5 is 1, expected 2"])
    with pytest.raises(StoreError, match="arrived damaged"):
        checkpoints.upload(made, store, epoch=1)


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files that were hashed since it was last cleared."""
    names = []
    original = checkpoints.file_md5
    monkeypatch.setattr(checkpoints, "file_md5", lambda path: names.append(path.name) or original(path))
    return names


def test_what_was_verified_once_is_not_hashed_again_while_its_files_are_the_same(run, store, hashed):
    check = checkpoints.VerifiedOnce()
    for step in (1, 2):
        write(run, step)
    hashed.clear()
    assert checkpoints.retain(run, store, keep=5, check=check) == []
    assert sorted(hashed) == sorted(["optimizer.safetensors", "policy.safetensors", "state.json"] * 2)
    hashed.clear()
    third = write(run, 3)
    hashed.clear()
    assert checkpoints.retain(run, store, keep=5, check=check) == []
    assert checkpoints.oldest_needed(run, store, check) == state(1)
    assert sorted(hashed) == ["optimizer.safetensors", "policy.safetensors", "state.json"]
    hashed.clear()
    assert checkpoints.verify(third.folder) == []
    assert len(hashed) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "state.json").write_text("{}"),
        lambda folder: (folder / "policy" / "policy.safetensors").write_bytes(b"weightz"),
        lambda folder: (folder / "optimizer.safetensors").unlink(),
        lambda folder: (folder / "extra").touch(),
        lambda folder: (folder / "MANIFEST.md5").unlink(),
    ],
    ids=["size", "time", "missing", "added", "manifest"],
)
def test_a_change_of_a_verified_checkpoint_is_noticed_and_so_is_its_repair(run, tmp_path, change):
    check = checkpoints.VerifiedOnce()
    folder = write(run, 1).folder
    shutil.copytree(folder, tmp_path / "copy")
    assert check(folder) == []
    change(folder)
    assert len(check(folder)) == len(check(folder)) == 1
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    assert check(folder) == []


def test_a_byte_that_rots_in_place_is_found_by_verify_alone(run):
    check = checkpoints.VerifiedOnce()
    folder = write(run, 1).folder
    assert check(folder) == []
    file = folder / "optimizer.safetensors"
    before = file.stat()
    file.write_bytes(b"momentz")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert check(folder) == []
    assert len(checkpoints.verify(folder)) == 1


def test_nothing_is_remembered_of_a_checkpoint_that_is_deleted(run, hashed):
    check = checkpoints.VerifiedOnce()
    folder = write(run, 1).folder
    check(folder)
    shutil.rmtree(folder)
    (fault,) = check(folder)
    assert "no readable MANIFEST.md5" in fault
    hashed.clear()
    check(write(run, 1).folder)
    assert hashed.count("state.json") == 2  # once sealed, once verified


def test_the_log_is_needed_from_the_oldest_valid_checkpoint_on(run, store):
    assert checkpoints.oldest_needed(run, store) is None
    for step in (1, 2, 3):
        write(run, step)
    (run.checkpoints / "step-000000001" / "state.json").write_text("{}")
    assert checkpoints.oldest_needed(run, store) == state(2)


def test_the_log_is_needed_for_a_checkpoint_that_only_the_store_keeps(run, store):
    made = write(run, 1)
    checkpoints.upload(made, store, epoch=1)
    shutil.rmtree(made.folder)
    write(run, 2)
    assert checkpoints.oldest_needed(run, store) == state(1)
    store.put("checkpoints/step-000000001/state.json", b"{")
    assert checkpoints.oldest_needed(run, store) == Resolved()
