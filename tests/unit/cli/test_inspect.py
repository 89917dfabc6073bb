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
    with made.hold("lifecycle"), made.hold("trainer"), made.hold("generator-0"):
        result = invoke("status", "made", "--home", home)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split() == ["run", "made", "working"]
    assert "24 produced = 16 trained + 0 stale + 0 evicted + 0 quarantined + 8 pending" in result.stdout
    words = [line.split() for line in result.stdout.splitlines()]
    assert ["trainer", "working"] in [line[:2] for line in words]
    assert any(line[:2] == ["generator-0", "waiting"] and "42" in line for line in words)


def test_a_dead_process_is_not_shown_as_alive(invoke, made, home):
    store = made.open_store()
    write_status(store, "trainer", {"pid": 4141, "phase": "working", "http": "http://127.0.0.1:5000"})
    write_status(store, "generator-0", {"pid": 4242, "phase": "stopped", "http": "http://127.0.0.1:5001"})
    result = invoke("status", "made", "--home", home)
    words = [line.split() for line in result.stdout.splitlines()]
    assert [line[:2] for line in words[-2:]] == [["generator-0", "stopped"], ["trainer", "gone"]]
    assert not any(gone in result.stdout for gone in ("4141", "4242", "127.0.0.1"))
    status = json.loads(invoke("status", "made", "--json", "--home", home).stdout)
    assert {role: process["alive"] for role, process in status["processes"].items()} == {
        "generator-0": False,
        "trainer": False,
    }


def test_a_run_that_was_stopped_says_how_to_go_on(invoke, made, home):
    first_line = invoke("status", "made", "--home", home).stdout.splitlines()[0]
    assert first_line.split("  ")[-1] == "stopped; continue with `offbeat resume made`"


def test_the_report_of_an_earlier_life_is_not_the_state_of_this_one(invoke, made, home):
    for steps, state in ((2, "promoted"), (1, "stopped")):
        made.write_report({"status": "promoted", "steps": steps})
        assert json.loads(invoke("status", "made", "--json", "--home", home).stdout)["status"] == state


def test_a_side_that_works_alone_is_named(invoke, made, home):
    with made.hold("trainer"):
        first_line = invoke("status", "made", "--home", home).stdout.splitlines()[0]
        assert first_line.endswith("working without a lifecycle: trainer")
        assert invoke("runs", "--home", home).stdout.splitlines()[-1].split() == ["made", "working"]


@pytest.mark.parametrize("command", ["status", "ledger", "runs"])
def test_what_was_recorded_is_read_under_a_configuration_that_is_wrong_elsewhere(invoke, made, home, command):
    made.config_file.write_text(
        made.config_file.read_text().replace("max_steps: 4", "max_steps: none") + "\nnonsense: 1\n"
    )
    result = invoke(command, *["made"] * (command != "runs"), "--home", home)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "unreadable" not in result.stdout
    result = invoke("replay", "made", "--home", home)
    assert (result.exit_code, result.stdout) == (2, "")
    assert str(made.config_file) in result.stderr
    assert "nonsense: unknown key" in result.stderr


@pytest.mark.parametrize("command", ["status", "ledger"])
def test_a_wrong_key_that_is_needed_is_named_with_its_file(invoke, made, home, command):
    made.config_file.write_text("log: {max_record_bytes: many}\ngenerator: {num_generators: 2}\n")
    result = invoke(command, "made", "--home", home)
    assert (result.exit_code, result.stdout) == (2, "")
    assert str(made.config_file) in result.stderr
    assert "log.max_record_bytes: got 'many'" in result.stderr


def test_status_as_json(invoke, made, home):
    write_status(made.open_store(), "trainer", {"phase": "stopped"})
    made.write_report({"status": "promoted"})
    status = json.loads(invoke("status", "made", "--json", "--home", home).stdout)
    assert status["processes"]["trainer"]["phase"] == "stopped"
    assert status["report"] == {"status": "promoted"}
    assert status["account"]["pending"] == 8
    assert status["status"] == "promoted"


def test_runs_lists_finished_and_stopped_ones(invoke, made, home):
    Run.create(made.config, run_id="done", home=home).write_report(
        {"status": "promoted", "steps": 4, "evaluation": {"return_mean": 487.25}}
    )
    (home / "broken").mkdir()
    (home / "broken" / "run.yaml").write_text("log: many\n")
    rows = {line.split()[0]: line.split()[1:] for line in invoke("runs", "--home", home).stdout.splitlines()}
    assert rows["made"] == ["stopped"]
    assert rows["done"] == ["promoted", "4", "return", "487.2"]
    assert rows["broken"][0] == "unreadable:"


def test_runs_of_an_empty_home(invoke, home):
    result = invoke("runs", "--home", home)
    assert (result.exit_code, result.stdout) == (0, "")


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
