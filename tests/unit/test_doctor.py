import re
import socket
import sqlite3
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from offbeat import doctor
from offbeat.config import parse_config
from offbeat.errors import ConfigError, LogUnavailable, NotReady, RegistryError


def config(**sections):
    return parse_config({"name": "small", "workload": {"num_envs": 2, "unroll_length": 4}, **sections})


def test_a_failed_check_becomes_a_finding():
    def away():
        raise LogUnavailable("the broker does not answer")

    assert doctor.examine("log", away) == doctor.Finding(name="log", ok=False, detail="the broker does not answer")
    assert doctor.examine("log", lambda: "fine") == doctor.Finding(name="log", ok=True, detail="fine")


def test_an_interpreter_out_of_bounds(monkeypatch):
    monkeypatch.setattr(doctor, "PYTHON_VERSIONS", ((2, 7), (3, 0)))
    with pytest.raises(NotReady, match=r"expected 3\.11 to 3\.13"):
        doctor.check_python()


def test_a_missing_and_an_old_package_are_both_named(monkeypatch):
    real = metadata.version

    def version(name):
        if name == "mlflow":
            raise metadata.PackageNotFoundError(name)
        return "2.0.0" if name == "prefect" else real(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    with pytest.raises(NotReady, match=r"prefect: got 2\.0\.0, expected .*; mlflow.* is not installed"):
        doctor.check_packages()


def test_too_little_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "FREE_BYTES", 1 << 60)
    with pytest.raises(NotReady, match="MiB free, expected at least"):
        doctor.check_disk(tmp_path / "not" / "yet")


def test_a_folder_without_a_repository_is_fine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no repository" in doctor.check_git()


def test_a_repository_whose_revision_cannot_be_read(monkeypatch):
    refused = subprocess.CompletedProcess([], 128, "", "fatal: detected dubious ownership in repository")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *arguments, **options: refused)
    with pytest.raises(NotReady, match="dubious ownership"):
        doctor.check_git()


def test_a_machine_without_git_is_fine(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "not installed" in doctor.check_git()


def test_fixed_ports_that_are_free(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert str(port) in doctor.check_ports(config(observation={"trainer_port": port}))
    assert doctor.check_ports(config()) == "none is fixed; free ones are chosen at the start"


def test_a_port_in_use_is_named_with_its_key():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotReady, match=rf"observation\.generator_port \+ 0: cannot open 127\.0\.0\.1:{port}"):
            doctor.check_ports(config(observation={"generator_port": port}, generator={"num_generators": 1}))


def test_ports_that_collide_with_each_other():
    with pytest.raises(ConfigError, match="expected each to be another"):
        doctor.check_ports(config(observation={"generator_port": 50050, "service_port": 50051}))


def test_probes_of_log_and_store_leave_nothing(tmp_path):
    elsewhere = tmp_path / "store"
    settled = config(store={"root": str(elsewhere)})
    assert "written and read" in doctor.check_log(settled, tmp_path / "runs")
    assert "written and read" in doctor.check_store(settled, tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []
    assert list(elsewhere.iterdir()) == []


def test_a_database_of_mlflow_that_is_none(tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(NotReady, match=r"mlflow\.db cannot be used"):
        doctor.check_mlflow(config(), tmp_path)


def test_a_database_of_mlflow_that_is_one(tmp_path):
    sqlite3.connect(tmp_path / "mlflow.db").close()
    assert doctor.check_mlflow(config(), tmp_path) == str(tmp_path / "mlflow.db")


def test_an_mlflow_server_is_asked_and_its_password_is_not_shown(tmp_path, monkeypatch):
    asked = []

    class FakeRegistry:
        def __init__(self, uri, *, experiment):
            asked.append(uri)

        def versions(self, name):
            if name == "away":
                raise RegistryError("MLflow does not answer")
            return []

    monkeypatch.setattr("offbeat.registry.Registry", FakeRegistry)
    uri = "http://me:secret@mlflow:5000"
    assert doctor.check_mlflow(config(registry={"tracking_uri": uri}), tmp_path) == "http://me:***@mlflow:5000 answers"
    with pytest.raises(RegistryError):
        doctor.check_mlflow(config(registry={"tracking_uri": uri, "model_name": "away"}), tmp_path)
    assert asked == [uri, uri]


def test_what_a_reward_printed_while_it_was_refused_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="the extra `language` is not installed")
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(100)))
    workload = {
        "kind": "language",
        "data": {"train": str(tmp_path / "rows.jsonl")},
        "rewards": {"functions": [{"name": "no_such_module:reward"}]},
    }
    with pytest.raises(ConfigError, match=re.escape(f"what it printed is in {tmp_path / 'rewards-check.log'}")):
        doctor.check_workload(parse_config({"workload": workload}), tmp_path)
    assert "ModuleNotFoundError" in (tmp_path / "rewards-check.log").read_text()
    assert not list(tmp_path.glob(".doctor-*"))
