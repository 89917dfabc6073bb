"""One real Prefect server for all tests of this folder, started when the first one needs it."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_URL, temporary_settings

from offbeat.cli.prefect_server import prefect_api

# Children open the flows of fake_children by name; a spawned process inherits this path.
sys.path.insert(0, str(Path(__file__).parent))

DEADLINE_S = 240.0


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prefect_api(tmp_path_factory.mktemp("prefect"), full=True) as url:
        # Other tests of the session must not see it; `prefect_url` sets it for those that ask.
        del os.environ["PREFECT_API_URL"]
        yield url


@pytest.fixture
def prefect_url(_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The server's API, as PREFECT_API_URL of this test and its processes."""
    monkeypatch.setenv("PREFECT_API_URL", _server)
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "WARNING")
    with temporary_settings({PREFECT_API_URL: _server}):
        yield _server


def until(condition: Callable[[], object], what: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Look again and again until `condition` holds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {deadline_s} s for {what}"
        time.sleep(0.1)


def flow_run(name: str) -> FlowRun | None:
    """The newest flow run with this name."""
    with get_client(sync_client=True) as client:
        named = FlowRunFilter(name=FlowRunFilterName(any_=[name]))
        found = client.read_flow_runs(flow_run_filter=named, sort=FlowRunSort.EXPECTED_START_TIME_DESC)
    return found[0] if found else None


def state_of(name: str) -> str:
    """Name of the state of the flow run with this name; empty while there is none."""
    found = flow_run(name)
    return found.state.name if found and found.state and found.state.name else ""


def states_of_children(parent: UUID) -> dict[str, list[str]]:
    """Names of the states of all subflow runs, by run name, oldest first."""
    linked = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent]))
    with get_client(sync_client=True) as client:
        runs = sorted(client.read_flow_runs(flow_run_filter=linked), key=lambda run: str(run.created))
    states: dict[str, list[str]] = {}
    for run in runs:
        states.setdefault(run.name, []).append(run.state.name if run.state and run.state.name else "")
    return states
