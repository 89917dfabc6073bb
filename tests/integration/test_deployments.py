"""prefect.yaml on a fresh server: registered, run through a worker, and Completed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from conftest import state_of, states_of_children, until
from prefect import get_client
from prefect.deployments import run_deployment
from test_lifecycle import SHORT

from offbeat.cli.prefect_server import guarded_process

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).parents[2]
POOL = ["offbeat-process", "--type", "process", "--base-job-template", "deployments/job-templates/process.json"]


def prefect(*arguments: str) -> None:
    command = [sys.executable, "-m", "prefect", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["process", pytest.param("deployment", marks=pytest.mark.slow)])
def test_a_deployed_lifecycle_completes_through_a_worker(kind: str, tmp_path: Path, prefect_url: str) -> None:
    prefect("work-pool", "create", *POOL, "--overwrite")
    prefect("--no-prompt", "deploy", "--all")
    check_deployments()
    environment = {
        **os.environ,
        "OFFBEAT_HOME": str(tmp_path / "runs"),
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_RUNNER_POLL_FREQUENCY": "2",
    }
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "offbeat-process", "--type", "process"]
    run_id = f"deployed-{kind}"
    with guarded_process(command, log=tmp_path / "worker.log", env=environment):
        parameters: dict[str, Any] = {"overrides": {**SHORT, "launcher.kind": kind}, "run_id": run_id}
        started: Any = run_deployment("lifecycle/cartpole", parameters=parameters, timeout=0)
        until(lambda: finished(started.id), "the run to end", deadline_s=1500)
        assert state_of(run_id) == "Completed"
        assert (tmp_path / "runs" / run_id / "report.json").is_file()
    assert states_of_children(started.id) == {
        f"{run_id}-{role}": ["Completed"] for role in ("trainer", "generator-0", "generator-1")
    }


def finished(flow_run_id: UUID) -> bool:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run_id).state
    return state is not None and state.is_final()


def check_deployments() -> None:
    with get_client(sync_client=True) as client:
        found = {deployment.name: deployment for deployment in client.read_deployments()}
    assert {"cartpole", "acrobot", "pendulum", "generator", "trainer", "evaluate", "cleanup"} <= set(found)
    form = found["cartpole"].parameter_openapi_schema
    assert form is not None
    assert form["properties"]["config"]["description"].startswith("Run configuration")
    assert found["cartpole"].parameters == {"config": "cartpole"}
    assert [schedule.active for schedule in found["cartpole"].schedules] == [False]
