import hashlib

import pytest


@pytest.fixture
def checkpoint(made):
    folder = made.checkpoints / "step-000000002"
    folder.mkdir()
    files = {"state.json": b"{}", "optimizer.safetensors": b"numbers"}
    manifest = "".join(f"{hashlib.md5(data).hexdigest()}  {name}\n" for name, data in files.items())
    store = made.open_store()
    for name, data in {**files, "MANIFEST.md5": manifest.encode()}.items():
        (folder / name).write_bytes(data)
        store.put(f"checkpoints/{folder.name}/{name}", data)
    return folder


def stored(run, checkpoint):
    return run.open_store().uri_of(f"checkpoints/{checkpoint.name}")


def test_every_copy_of_a_whole_checkpoint_is_ok(invoke, checkpoint, made, home):
    result = invoke("verify", checkpoint)
    assert (result.exit_code, result.stdout) == (0, f"{checkpoint}: OK\n")
    result = invoke("verify", "made", "--home", home)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"local  {checkpoint}: OK\nstore  {stored(made, checkpoint)}: OK\n"


def test_a_flipped_byte_is_named(invoke, checkpoint):
    (checkpoint / "optimizer.safetensors").write_bytes(b"numberz")
    result = invoke("verify", checkpoint)
    assert result.exit_code == 1
    assert "optimizer.safetensors: MD5 is" in result.stderr
    assert "state.json" not in result.stderr


def test_a_missing_manifest_is_no_checkpoint(invoke, checkpoint):
    (checkpoint / "MANIFEST.md5").unlink()
    result = invoke("verify", checkpoint)
    assert result.exit_code == 1
    assert "no readable MANIFEST.md5" in result.stderr


def test_a_damaged_copy_in_the_store_is_named_when_a_run_is_verified(invoke, checkpoint, made, home):
    made.open_store().put(f"checkpoints/{checkpoint.name}/state.json", b"[]")
    result = invoke("verify", "made", "--home", home)
    assert result.exit_code == 1
    assert "state.json" in result.stderr
    assert result.stdout == f"local  {checkpoint}: OK\nstore  {stored(made, checkpoint)}: FAILED\n"


@pytest.mark.parametrize("name", ["optimizer.safetensors", "MANIFEST.md5"])
def test_a_damaged_local_copy_does_not_make_the_stored_one_look_bad(invoke, checkpoint, made, home, name):
    (checkpoint / name).write_bytes(b"nonsense")
    result = invoke("verify", "made", "--home", home)
    assert result.exit_code == 1
    assert str(checkpoint) in result.stderr
    assert result.stdout == f"local  {checkpoint}: FAILED\nstore  {stored(made, checkpoint)}: OK\n"


def test_two_damaged_copies_are_both_named(invoke, checkpoint, made, home):
    (checkpoint / "optimizer.safetensors").write_bytes(b"numberz")
    made.open_store().put(f"checkpoints/{checkpoint.name}/MANIFEST.md5", b"nonsense")
    result = invoke("verify", "made", "--home", home)
    assert result.exit_code == 1
    assert result.stdout == f"local  {checkpoint}: FAILED\nstore  {stored(made, checkpoint)}: FAILED\n"


def test_a_run_is_verified_under_a_configuration_that_is_wrong_elsewhere(invoke, checkpoint, made, home):
    made.config_file.write_text("nonsense: 1\n")
    assert invoke("verify", "made", "--home", home).exit_code == 0


def test_a_copy_that_is_not_in_the_store_is_missed_once_the_run_is_over(invoke, checkpoint, made, home):
    store = made.open_store()
    for info in list(store.list("checkpoints/")):
        store.delete(info.key)
    result = invoke("verify", "made", "--home", home)
    copies = f"local  {checkpoint}: OK\nstore  {stored(made, checkpoint)}"
    assert (result.exit_code, result.stdout) == (0, f"{copies}: not there yet\n")
    made.write_report({"status": "promoted"})
    result = invoke("verify", "made", "--home", home)
    assert result.exit_code == 1
    assert result.stdout == f"{copies}: FAILED\n"
    assert "MANIFEST.md5: missing" in result.stderr


def test_a_run_without_checkpoints_cannot_be_verified(invoke, made, home):
    result = invoke("verify", "made", "--home", home)
    assert result.exit_code == 1
    assert "run made has no checkpoint" in result.stderr
