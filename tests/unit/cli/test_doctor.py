import os
import signal

import pytest


@pytest.fixture(autouse=True)
def _machine_is_right(monkeypatch):
    # What the machine has is tested with offbeat.doctor; here it must not decide.
    monkeypatch.setattr("offbeat.doctor.check_packages", lambda: "19 present")
    monkeypatch.setattr("offbeat.doctor.check_disk", lambda home: "5 GiB free")


def marks(result):
    return {
        line.split()[1]: line.split()[0] for line in result.stdout.splitlines() if line.split()[0] in ("ok", "FAILED")
    }


def test_a_machine_and_a_configuration_that_are_right(invoke, config_file, home):
    result = invoke("doctor", config_file, "--home", home)
    assert (result.exit_code, result.stderr) == (0, "")
    checks = "python packages home disk git prefect config device workload log store ports mlflow"
    assert marks(result) == dict.fromkeys(checks.split(), "ok")
    assert list(home.iterdir()) == []


def test_without_a_configuration_only_the_machine_is_checked(invoke, home):
    result = invoke("doctor", "--home", home)
    assert result.exit_code == 0
    assert "config" not in marks(result)


def test_one_failure_exits_with_2_and_the_other_checks_still_run(invoke, config_file, home):
    result = invoke("doctor", config_file, "--set", "workload.env_id=CartPoll-v1", "--home", home)
    assert (result.exit_code, result.stderr) == (2, "1 check failed\n")
    failed = [name for name, mark in marks(result).items() if mark == "FAILED"]
    assert failed == ["workload"]
    assert "CartPoll-v1" in result.stdout


def test_a_wrong_configuration_is_one_failed_check(invoke, config_file, home):
    result = invoke("doctor", config_file, "--set", "training.max_step=3", "--home", home)
    assert result.exit_code == 2
    assert marks(result)["config"] == "FAILED"
    assert "did you mean max_steps?" in result.stdout


def test_a_home_that_cannot_be_written(invoke, tmp_path):
    (tmp_path / "file").touch()
    result = invoke("doctor", "--home", tmp_path / "file" / "runs")
    assert (result.exit_code, marks(result)["home"]) == (2, "FAILED")


def test_a_prefect_api_that_does_not_answer(invoke, home, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    result = invoke("doctor", "--home", home)
    assert (result.exit_code, marks(result)["prefect"]) == (2, "FAILED")


def test_a_check_that_is_told_to_stop_takes_what_it_wrote_along(invoke, config_file, home, monkeypatch):
    def stopped(config, base):
        base.parent.joinpath("half").write_text("written")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("offbeat.workloads.open_workload", stopped)
    assert invoke("doctor", config_file, "--home", home).exit_code == 130
    assert list(home.iterdir()) == []
