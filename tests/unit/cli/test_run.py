import contextlib
import json
import os
import signal
import socket
import sys
import types

import pytest
from prefect.exceptions import PrefectException

from offbeat.cli.report import REPORT_KEYS
from offbeat.config import load_config
from offbeat.errors import ChildFailed, GateRejected, RunCancelled, RunLocked, WorkloadError
from offbeat.runs import Run

REPORT = {
    "status": "promoted",
    "steps": 3,
    "policy_version": 3,
    "produced": 30,
    "trained": 24,
    "stale": 2,
    "evicted": 1,
    "quarantined": 0,
    "pending": 3,
    "evaluation": {"return_mean": 487.25, "return_ci_low": 480.0, "return_ci_high": 491.125, "episodes": 100},
    "checkpoint": {"uri": "file:///checkpoint", "md5_ok": True},
    "model": {"name": "small", "version": 1, "alias": "champion"},
    "samples_per_second": 123456.0,
    "trajectories_per_second": 3858.0,
    "data_latency_p50_ms": 3.25,
    "data_latency_p99_ms": float("nan"),
    "staleness_max": 2,
    "trainer_busy_ratio": 0.91,
    "wall_seconds": 12.5,
}


class FakeLifecycle:
    """Stands where the flow is: makes the run's folder, prints as careless libraries do, then ends as told."""

    def __init__(self):
        self.calls = []
        self.end = lambda: None

    def __call__(self, config, overrides, *, run_id, resume):
        self.calls.append({"overrides": overrides, "run_id": run_id, "resume": resume})
        if not resume:
            Run.create(load_config(config, overrides), run_id=run_id)
        sys.stdout.write("a library that prints\n")
        self.end()
        return {**REPORT, "run_id": run_id}


@pytest.fixture
def lifecycle(monkeypatch):
    def served(home, *, meanwhile):
        return contextlib.nullcontext("http://127.0.0.1:4200/api")

    fake = FakeLifecycle()
    module = types.ModuleType("flows.lifecycle")
    module.run_lifecycle = fake
    monkeypatch.setitem(sys.modules, "flows.lifecycle", module)
    monkeypatch.setattr("offbeat.cli.prefect_server.prefect_api", served)
    monkeypatch.setattr("offbeat.cli.run.elapsed_s", lambda: 31.5)
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "WARNING")
    return fake


def test_json_is_the_only_line_on_stdout_and_has_every_promised_key(invoke, lifecycle, config_file, home):
    result = invoke("run", config_file, "--json", "--run-id", "one", "--home", home)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1
    report = json.loads(result.stdout)
    assert set(REPORT_KEYS) <= report.keys()
    assert (report["run_id"], report["data_latency_p50_ms"], report["data_latency_p99_ms"]) == ("one", 3.25, None)
    assert "a library that prints" in result.stderr


def test_places_are_said_at_the_start_and_a_summary_at_the_end(invoke, lifecycle, config_file, home):
    result = invoke("run", config_file, "--run-id", "one", "--home", home)
    for place in (home / "one", "http://127.0.0.1:4200", f"sqlite:///{home / 'mlflow.db'}"):
        assert str(place) in result.stderr
    for words in (
        "one  promoted in 31.5 s",
        "30 produced = 24 trained + 2 stale + 1 evicted + 0 quarantined + 3 pending",
        "123k samples/s, trainer busy 91%, staleness at most 2",
        "return 487.2 (480.0 to 491.1) over 100 episodes",
        "file:///checkpoint  verified",
        "small version 1 is champion",
    ):
        assert words in result.stdout


def test_the_time_is_that_of_the_whole_command_everywhere(invoke, lifecycle, config_file, home):
    result = invoke("run", config_file, "--json", "--run-id", "one", "--home", home)
    assert json.loads(result.stdout)["wall_seconds"] == 31.5
    assert Run.open("one", home=home).read_report() == {**REPORT, "run_id": "one", "wall_seconds": 31.5} | {
        "data_latency_p99_ms": pytest.approx(float("nan"), nan_ok=True)
    }
    lifecycle.end = ends_with(ChildFailed("generator-0 died 4 times"))
    result = invoke("run", config_file, "--json", "--run-id", "two", "--home", home)
    assert json.loads(result.stdout)["wall_seconds"] == 31.5


def test_a_run_is_named_before_anything_slow_begins(invoke, lifecycle, config_file, home, monkeypatch):
    def slow(config, home):
        raise KeyboardInterrupt

    monkeypatch.setattr("offbeat.doctor.check_workload", slow)
    result = invoke("run", config_file, "--json", "--run-id", "one", "--home", home)
    assert (result.stdout, result.stderr) == ("", f"run one of {config_file}: starting\ninterrupted\n")


def test_each_stage_of_the_start_is_said(invoke, lifecycle, config_file, home):
    lines = invoke("run", config_file, "--run-id", "one", "--home", home).stderr.splitlines()
    assert lines[:3] == [
        f"run one of {config_file}: starting",
        f"Prefect  starting a server, its files in {home / 'prefect'}",
        f"run      {home / 'one'}",
    ]
    assert "Prefect  http://127.0.0.1:4200  ready" in lines
    lines = invoke("resume", "one", "--home", home).stderr.splitlines()
    assert lines[0] == f"run one in {home}: continuing"


def test_a_prefect_api_that_does_not_answer_exits_with_2_before_anything_else(
    invoke, lifecycle, config_file, home, monkeypatch
):
    def late(config, home):
        raise AssertionError("the API was not asked first")

    monkeypatch.setattr("offbeat.doctor.check_workload", late)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    Run.create(load_config(config_file), run_id="there", home=home)
    for arguments in (("run", config_file), ("resume", "there")):
        result = invoke(*arguments, "--json", "--home", home)
        assert (result.exit_code, result.stdout, lifecycle.calls) == (2, "", [])
        assert "PREFECT_API_URL http://127.0.0.1:9/api does not answer" in result.stderr
        assert "Traceback" not in result.stderr


def test_overrides_and_required_promotion_reach_the_lifecycle(invoke, lifecycle, config_file, home):
    invoke(
        "run", config_file, "--set", "training.max_steps=2", "--require-promotion", "--run-id", "one", "--home", home
    )
    config = Run.open("one", home=home).config
    assert (config.training.max_steps, config.evaluation.require_promotion) == (2, True)


def test_a_run_without_a_given_id_is_named_after_its_configuration(invoke, lifecycle, config_file, home):
    invoke("run", config_file, "--home", home)
    assert lifecycle.calls[0]["run_id"].startswith("small-")


def test_a_wrong_configuration_exits_with_2_before_anything_starts(invoke, lifecycle, config_file, home):
    wrong = {
        "training.max_step=3": "did you mean max_steps?",
        "training.max_steps=0": "training.max_steps: got 0",
        "workload.env_id=CartPoll-v1": "CartPoll-v1",
        "no equals sign": "expected section.key=value",
    }
    for override, words in wrong.items():
        result = invoke("run", config_file, "--json", "--set", override, "--home", home)
        assert (result.exit_code, result.stdout, lifecycle.calls) == (2, "", [])
        assert words in result.stderr
        assert "Traceback" not in result.stderr


def test_a_machine_that_lacks_something_exits_with_2_before_anything_starts(invoke, lifecycle, config_file, home):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lacking = {
            "training.device=mps": "training.device: got 'mps'",
            f"observation.trainer_port={port}": f"cannot open 127.0.0.1:{port}",
            "registry.tracking_uri=nonsense://x": "nonsense",
        }
        for override, words in lacking.items():
            result = invoke("run", config_file, "--set", override, "--home", home)
            assert (result.exit_code, lifecycle.calls) == (2, [])
            assert words in result.stderr
            assert "Traceback" not in result.stderr


@pytest.mark.parametrize("run_id", ["../evil", "", "store", "taken"])
def test_a_run_id_that_cannot_be_exits_with_2_before_anything_starts(invoke, lifecycle, config_file, home, run_id):
    (home / "taken").mkdir(parents=True)
    (home / "taken" / "run.yaml").touch()
    result = invoke("run", config_file, "--run-id", run_id, "--home", home)
    assert (result.exit_code, lifecycle.calls) == (2, [])
    assert repr(run_id) in result.stderr or "exists already" in result.stderr


def test_a_missing_configuration_exits_with_2(invoke, lifecycle, tmp_path):
    result = invoke("run", tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert "cannot read the configuration" in result.stderr


def test_a_home_that_cannot_be_written_exits_with_2_and_names_it(invoke, lifecycle, config_file, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    result = invoke("run", config_file, "--home", blocked / "runs")
    assert (result.exit_code, lifecycle.calls) == (2, [])
    assert f"cannot write the runs folder {blocked / 'runs'}" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_home_exits_with_2(invoke, lifecycle, config_file, tmp_path):
    home = tmp_path / "sealed"
    home.mkdir(mode=0o500)
    assert invoke("run", config_file, "--home", home).exit_code == 2


def test_an_environment_that_fails_at_once_exits_with_2(invoke, lifecycle, config_file, home, monkeypatch):
    def broken(config, home):
        raise WorkloadError("step 1 raised ZeroDivisionError")

    monkeypatch.setattr("offbeat.doctor.check_workload", broken)
    result = invoke("run", config_file, "--home", home)
    assert (result.exit_code, lifecycle.calls) == (2, [])
    assert "nothing was started: step 1 raised ZeroDivisionError" in result.stderr


def ends_with(error):
    def end():
        raise error

    return end


def test_a_failed_run_exits_with_1_and_still_gives_its_account(invoke, lifecycle, config_file, home):
    lifecycle.end = ends_with(ChildFailed("generator-0 died 4 times"))
    result = invoke("run", config_file, "--json", "--run-id", "one", "--home", home)
    report = json.loads(result.stdout)
    assert (result.exit_code, report["status"], report["produced"]) == (1, "failed", 0)
    assert report["error"] == "ChildFailed: generator-0 died 4 times"
    assert "error: ChildFailed: generator-0 died 4 times" in result.stderr
    assert "offbeat resume one" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_rejected_model_exits_with_1_where_promotion_was_required(invoke, lifecycle, config_file, home):
    def end():
        Run.open("one", home=home).write_report({**REPORT, "run_id": "one", "status": "rejected"})
        raise GateRejected("return 20 is below 475")

    lifecycle.end = end
    result = invoke("run", config_file, "--json", "--require-promotion", "--run-id", "one", "--home", home)
    report = json.loads(result.stdout)
    assert (result.exit_code, report["status"], report["steps"]) == (1, "rejected", 3)
    assert "error: GateRejected: return 20 is below 475" in result.stderr
    assert "resume" not in result.stderr


def test_prefect_that_fails_is_a_failed_run(invoke, lifecycle, config_file, home):
    lifecycle.end = ends_with(PrefectException("the API went away"))
    result = invoke("run", config_file, "--run-id", "one", "--home", home)
    assert result.exit_code == 1
    assert "Prefect could not carry it through: the API went away" in result.stderr


def test_a_run_that_another_process_holds_exits_with_2(invoke, lifecycle, config_file, home):
    lifecycle.end = ends_with(RunLocked("process 7 already works as lifecycle"))
    result = invoke("run", config_file, "--json", "--run-id", "one", "--home", home)
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_stopped_run_exits_with_130_and_says_how_to_go_on(invoke, lifecycle, config_file, home):
    for number, error in enumerate([KeyboardInterrupt(), RunCancelled("somebody pressed cancel")]):
        lifecycle.end = ends_with(error)
        result = invoke("run", config_file, "--json", "--run-id", f"run-{number}", "--home", home)
        assert result.exit_code == 130
        assert json.loads(result.stdout)["status"] == "cancelled"
        assert f"offbeat resume run-{number}" in result.stderr


def test_a_signal_ends_the_run_as_ctrl_c_does(invoke, lifecycle, config_file, home):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before = signal.getsignal(number)
        lifecycle.end = lambda number=number: os.kill(os.getpid(), number)
        result = invoke("run", config_file, "--run-id", number.name, "--home", home)
        assert result.exit_code == 130
        assert f"run {number.name} was stopped" in result.stderr
        assert signal.getsignal(number) == before


def test_a_run_stopped_before_it_has_a_folder_cannot_be_continued(invoke, lifecycle, config_file, home, monkeypatch):
    def interrupted(home, *, meanwhile):
        raise KeyboardInterrupt

    monkeypatch.setattr("offbeat.cli.prefect_server.prefect_api", interrupted)
    result = invoke("run", config_file, "--run-id", "one", "--home", home)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, "error: run one was stopped")
    assert "resume" not in result.stderr


def test_resume_continues_under_changed_keys(invoke, lifecycle, config_file, home):
    Run.create(load_config(config_file), run_id="one", home=home)
    result = invoke("resume", "one", "--set", "training.max_steps=9", "--home", home)
    assert result.exit_code == 0
    assert lifecycle.calls == [{"overrides": ["training.max_steps=9"], "run_id": "one", "resume": True}]
    assert Run.open("one", home=home).config.training.max_steps == 9


def test_resume_refuses_what_cannot_change_before_anything_starts(invoke, lifecycle, config_file, home):
    Run.create(load_config(config_file), run_id="one", home=home)
    result = invoke("resume", "one", "--set", "seed=5", "--home", home)
    assert (result.exit_code, lifecycle.calls) == (2, [])
    assert "seed: was 0, now 5" in result.stderr


def test_resume_refuses_a_run_that_still_works(invoke, lifecycle, config_file, home):
    with Run.create(load_config(config_file), run_id="one", home=home).hold("lifecycle"):
        result = invoke("resume", "one", "--set", "training.max_steps=9", "--home", home)
    assert (result.exit_code, lifecycle.calls) == (2, [])
    assert f"process {os.getpid()} already works as lifecycle" in result.stderr
