import hashlib
import json

import pytest

from offbeat.runs import Run, write_status
from offbeat.trainer.repeat import Divergence
from offbeat.trainer.replay import ReplayReport

ACCOUNT = {"produced": 24, "trained": 16, "stale": 0, "evicted": 0, "quarantined": 0, "pending": 8, "difference": 0}


def test_ledger_as_json_is_the_account(invoke, made, home):
    result = invoke("ledger", "made", "--json", "--home", home)
    account = json.loads(result.stdout)
    assert result.exit_code == 0
    assert account.items() >= ACCOUNT.items()
    assert (account["steps"], account["policy_version"], account["staleness_max"]) == (2, 2, 2)


def test_ledger_as_text_names_every_term(invoke, made, home):
    result = invoke("ledger", made.folder)
    lines = dict(line.split() for line in result.stdout.splitlines())
    assert lines.items() >= {name: str(count) for name, count in ACCOUNT.items()}.items()


def test_ledger_that_does_not_add_up_exits_with_1(invoke, miscounted, home):
    result = invoke("ledger", "made", "--home", home)
    assert result.exit_code == 1
    assert "1 trajectories of 24 are not accounted for" in result.stderr


@pytest.mark.parametrize("command", ["status", "ledger", "replay", "resume", "verify", "trainer"])
def test_an_unknown_run_exits_with_2_and_names_the_known_ones(invoke, made, home, command):
    result = invoke(command, "maid", "--home", home)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no run 'maid'" in result.stderr
    assert "made" in result.stderr
    assert "Traceback" not in result.stderr


def test_status_shows_each_process_and_the_account(invoke, made, home):
    store = made.open_store()
    write_status(store, "trainer", {"pid": 41, "phase": "working", "http": "http://127.0.0.1:5000", "updated_at_ns": 0})
    write_status(store, "generator-0", {"pid": 42, "phase": "waiting", "updated_at_ns": 0})
    result = invoke("status", "made", "--home", home)
    assert result.exit_code == 0
    assert "24 produced = 16 trained + 0 stale + 0 evicted + 0 quarantined + 8 pending" in result.stdout
    words = [line.split() for line in result.stdout.splitlines()]
    assert ["trainer", "working"] in [line[:2] for line in words]
    assert any(line[:2] == ["generator-0", "waiting"] and "42" in line for line in words)


def test_status_as_json(invoke, made, home):
    write_status(made.open_store(), "trainer", {"phase": "stopped"})
    made.write_report({"status": "promoted"})
    status = json.loads(invoke("status", "made", "--json", "--home", home).stdout)
    assert status["processes"]["trainer"]["phase"] == "stopped"
    assert status["report"] == {"status": "promoted"}
    assert status["account"]["pending"] == 8


def test_runs_lists_finished_and_unfinished_ones(invoke, made, home):
    Run.create(made.config, run_id="done", home=home).write_report(
        {"status": "promoted", "steps": 4, "evaluation": {"return_mean": 487.25}}
    )
    (home / "broken").mkdir()
    (home / "broken" / "run.yaml").write_text("seed: many\n")
    rows = {line.split()[0]: line.split()[1:] for line in invoke("runs", "--home", home).stdout.splitlines()}
    assert rows["made"] == ["unfinished"]
    assert rows["done"] == ["promoted", "4", "return", "487.2"]
    assert rows["broken"][0] == "unreadable:"


def test_runs_of_an_empty_home(invoke, home):
    result = invoke("runs", "--home", home)
    assert (result.exit_code, result.stdout) == (0, "")


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


def test_a_whole_checkpoint_is_ok(invoke, checkpoint, home):
    for name in (checkpoint, "made"):
        result = invoke("verify", name, "--home", home)
        assert (result.exit_code, result.stdout) == (0, f"{checkpoint}: OK\n")


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


def test_a_copy_that_is_not_in_the_store_is_missed_once_the_run_is_over(invoke, checkpoint, made, home):
    store = made.open_store()
    for info in list(store.list("checkpoints/")):
        store.delete(info.key)
    result = invoke("verify", "made", "--home", home)
    assert (result.exit_code, result.stdout) == (0, f"{checkpoint}: OK\n")
    assert "has no copy of it yet" in result.stderr
    made.write_report({"status": "promoted"})
    result = invoke("verify", "made", "--home", home)
    assert result.exit_code == 1
    assert "MANIFEST.md5: missing" in result.stderr


def test_a_run_without_checkpoints_cannot_be_verified(invoke, made, home):
    result = invoke("verify", "made", "--home", home)
    assert result.exit_code == 1
    assert "run made has no checkpoint" in result.stderr


def replayed(monkeypatch, *divergences):
    def fake(run, *, first, last):
        return ReplayReport(first=first, last=last, started_from=0, steps=2, unrecorded=0, divergences=divergences)

    monkeypatch.setattr("offbeat.trainer.replay.replay", fake)


def test_a_replay_without_divergence_exits_with_0(invoke, made, home, monkeypatch):
    replayed(monkeypatch)
    result = invoke("replay", "made", "--from", 1, "--to", 2, "--json", "--home", home)
    assert result.exit_code == 0
    assert json.loads(result.stdout).items() >= {"first": 1, "last": 2, "steps": 2, "divergences": []}.items()


def test_a_divergence_exits_with_1_and_is_named(invoke, made, home, monkeypatch):
    replayed(monkeypatch, Divergence(step=2, expected="aa", got="bb"))
    result = invoke("replay", "made", "--home", home)
    assert result.exit_code == 1
    assert "2 compared, 1 differ" in result.stdout
    assert "step 2: parameters are bb, the ledger says aa" in result.stdout
