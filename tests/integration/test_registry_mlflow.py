"""The registry against real MLflow, from other processes: fresh interpreters, two at once, and an HTTP server."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from offbeat.config import RunConfig, parse_config
from offbeat.evaluation import decide, environment_of, evaluate_champion, evaluate_policy
from offbeat.registry import ModelVersion, Registry
from offbeat.runs import Run
from offbeat.workloads import open_workload

SERVER_DEADLINE_S = 300.0

LOAD = """
import json, sys, mlflow, numpy
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/cartpole@champion")
observations = numpy.array(json.loads(sys.argv[2]))
print(json.dumps(numpy.asarray(model.predict(observations)).tolist()))
"""

FIRST_USE = """
import sys
import mlflow
from offbeat.registry import Registry
print("ready", flush=True)
sys.stdin.readline()
print(Registry(sys.argv[1], experiment="demo").start_run("one of two", params={}, tags={}))
"""


def checkpoint(config: RunConfig, folder: Path) -> Path:
    open_workload(config).make_learner().save(folder)
    return folder


def register(registry: Registry, folder: Path, config: RunConfig) -> ModelVersion:
    run_id = registry.start_run("demo", params={}, tags={})
    return registry.register_version(
        "cartpole",
        run_id=run_id,
        policy_folder=folder / "policy",
        loader_module="offbeat.workloads.serving",
        tags={"run_id": "demo-1", "step": "0", "environment": environment_of(config)},
    )


def actions_elsewhere(tracking_uri: str, observations: np.ndarray) -> list[int]:
    """What a fresh interpreter, started in another folder, gets from the champion."""
    command = [sys.executable, "-c", LOAD, tracking_uri, json.dumps(observations.tolist())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd="/")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def actions_here(folder: Path, config: RunConfig, observations: np.ndarray) -> list[int]:
    from offbeat.workloads.serving import _load_pyfunc

    return list(_load_pyfunc(str(folder / "policy")).predict(observations).tolist())


@pytest.fixture
def observations() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(64, 4))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(parse_config({"name": "cartpole", "evaluation": {"episodes": 5}}), home=tmp_path)


def test_champion_loads_in_a_fresh_interpreter(tmp_path: Path, run: Run, observations: np.ndarray) -> None:
    registry = Registry(run.tracking_uri, experiment="demo")
    folder = checkpoint(run.config, tmp_path / "step-000000000")
    registry.promote("cartpole", register(registry, folder, run.config).version)
    actions = actions_elsewhere(run.tracking_uri, observations)
    assert actions == actions_here(folder, run.config, observations)
    assert set(actions) <= {0, 1}
    assert sorted(path.name for path in run.home.iterdir() if path.name.startswith("ml")) == [
        "mlartifacts",
        "mlflow.db",
    ]

    # The same policy as challenger: the same seeds, no difference, promoted by the rule for equals.
    champion = evaluate_champion(run, registry)
    assert champion.version is not None
    verdict = decide(evaluate_policy(run, folder), champion.scores, run.config.evaluation, notes=champion.notes)
    assert verdict.promote
    assert verdict.difference is not None
    assert (verdict.difference.mean, verdict.difference.ci_low, verdict.difference.ci_high) == (0.0, 0.0, 0.0)


def test_two_processes_may_be_first_at_once(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    command = [sys.executable, "-c", FIRST_USE, uri]
    pipe = subprocess.PIPE
    children = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:  # Both have imported what they need, so that they meet at the empty database.
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=240) for child in children]
    assert [child.returncode for child in children] == [0, 0], answers
    run_ids = {stdout.strip() for stdout, _ in answers}
    assert len(run_ids) == 2
    assert {stderr for _, stderr in answers} == {""}  # No line of MLflow's migrations among ours.
    registry = Registry(uri, experiment="demo")
    assert all(registry.start_run("again", params={}, tags={}, run_id=run_id) == run_id for run_id in run_ids)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path / "server"
    folder.mkdir()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination", str(folder)]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process, tmp_path / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + SERVER_DEADLINE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail(f"the MLflow server did not answer: {log.read_text()}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_serves_as_well_as_a_database(tmp_path: Path, run: Run, server: str, observations: np.ndarray) -> None:
    registry = Registry(server, experiment="demo")
    folder = checkpoint(run.config, tmp_path / "step-000000000")
    version = register(registry, folder, run.config)
    registry.promote("cartpole", version.version)
    fetched = registry.download_policy(version, tmp_path / "fetched")
    assert {path.name: path.read_bytes() for path in fetched.iterdir()} == {
        path.name: path.read_bytes() for path in (folder / "policy").iterdir()
    }
    assert registry.referenced_steps("demo-1") == {0}
    assert actions_elsewhere(server, observations) == actions_here(folder, run.config, observations)
