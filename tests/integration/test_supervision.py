"""Supervision with real processes and a real Prefect server; the children only pretend to work."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from conftest import flow_run, state_of, states_of_children, until
from prefect import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from offbeat.cli.prefect_server import free_port, prefect_api
from offbeat.config import parse_config
from offbeat.runs import Run, read_status

pytestmark = pytest.mark.timeout(900)

# Generous where a busy machine must not decide a test.
LAUNCHER = {"restart_pause_s": 0.1, "max_restarts": 2, "stop_grace_s": 60, "progress_deadline_s": 600}


def make_run(tmp_path: Path, *, generators: int = 1, **launcher: float) -> Run:
    settings = {
        "name": "fake",
        "generator": {"num_generators": generators},
        "observation": {"interval_s": 0.2},
        "launcher": {**LAUNCHER, **launcher},
    }
    return Run.create(parse_config(settings), home=tmp_path / "runs")


@contextmanager
def parent_of(run: Run) -> Iterator[subprocess.Popen[bytes]]:
    """The fake lifecycle in a process group of its own, as a terminal would have it."""
    command = [sys.executable, str(Path(__file__).with_name("fake_parent.py")), str(run.folder)]
    process = subprocess.Popen(command, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def pids(run: Run) -> dict[str, int]:
    store = run.open_store()
    return {role: int(status["pid"]) for role, status in read_status(store).items()}


def until_working(run: Run, *roles: str) -> dict[str, int]:
    until(lambda: set(roles) <= set(pids(run)), f"{roles} to report")
    return pids(run)


def until_gone(*processes: int) -> None:
    until(lambda: not any(psutil.pid_exists(pid) and not _zombie(pid) for pid in processes), f"{processes} to end")


def _zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def children_of(run: Run) -> dict[str, list[str]]:
    found = flow_run(run.run_id)
    assert found is not None
    return {name.removeprefix(f"{run.run_id}-"): states for name, states in states_of_children(found.id).items()}


def test_killed_and_stuck_children_are_restarted_and_prefect_is_told_the_truth(
    tmp_path: Path, prefect_url: str
) -> None:
    run = make_run(tmp_path, generators=2, progress_deadline_s=10)
    (run.folder / "generator-1.stand-still").touch()
    with parent_of(run) as parent:
        first = until_working(run, "trainer", "generator-0", "generator-1")
        os.kill(first["generator-0"], signal.SIGKILL)
        until(lambda: pids(run)["generator-0"] != first["generator-0"], "a second life of the killed one")
        until(lambda: pids(run)["generator-1"] != first["generator-1"], "a second life of the stuck one")
        (run.folder / "finish").touch()
        assert parent.wait() == 0
    states = children_of(run)
    assert states["trainer"][-1] == "Completed"
    assert (states["generator-0"][0], states["generator-0"][-1]) == ("Crashed", "Completed")
    assert (states["generator-1"][0], states["generator-1"][-1]) == ("Cancelled", "Completed")
    assert state_of(run.run_id) == "Completed"
    assert (run.folder / "output" / "generator-0.log").is_file()


def test_a_child_that_refuses_fails_the_run_at_once_and_the_others_are_stopped(
    tmp_path: Path, prefect_url: str
) -> None:
    run = make_run(tmp_path)
    (run.folder / "generator-0.refuse").touch()
    with parent_of(run) as parent:
        parent.wait()
    found = flow_run(run.run_id)
    assert found is not None
    assert found.state is not None
    assert found.state.name == "Failed"
    assert "ChildFailed: generator-0 gave up after 1 attempt" in str(found.state.message)
    assert "this machine will never do" in str(found.state.message)
    assert children_of(run) == {"trainer": ["Cancelled"], "generator-0": ["Refused"]}


def test_cancelling_the_parent_in_the_ui_leaves_nothing_running(tmp_path: Path, prefect_url: str) -> None:
    run = make_run(tmp_path)
    with parent_of(run) as parent:
        working = until_working(run, "trainer", "generator-0")
        found = flow_run(run.run_id)
        assert found is not None
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(found.id, Cancelling())
        parent.wait()
        until_gone(*working.values())
    assert state_of(run.run_id) == "Cancelled"
    assert children_of(run) == {"trainer": ["Cancelled"], "generator-0": ["Cancelled"]}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_in_order(tmp_path: Path, prefect_url: str, number: signal.Signals) -> None:
    run = make_run(tmp_path)
    with parent_of(run) as parent:
        working = until_working(run, "trainer", "generator-0")
        if number == signal.SIGINT:
            os.killpg(parent.pid, number)  # Ctrl-C reaches every process of the terminal
        else:
            os.kill(parent.pid, number)
        parent.wait()
        until_gone(*working.values())
    assert state_of(run.run_id) == "Cancelled"
    assert children_of(run) == {"trainer": ["Cancelled"], "generator-0": ["Cancelled"]}


def test_children_of_a_killed_parent_stop_and_tell_that_it_is_dead(tmp_path: Path, prefect_url: str) -> None:
    run = make_run(tmp_path)
    with parent_of(run) as parent:
        working = until_working(run, "trainer", "generator-0")
        os.kill(parent.pid, signal.SIGKILL)
        until_gone(*working.values())
    assert state_of(run.run_id) == "Crashed"
    assert children_of(run) == {"trainer": ["Cancelled"], "generator-0": ["Cancelled"]}


@pytest.mark.chaos
def test_a_run_outlives_the_prefect_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes away in the middle, a child dies meanwhile, the server comes back: nothing is lost."""
    run = make_run(tmp_path)
    home, port = tmp_path / "prefect", free_port()
    url = f"http://127.0.0.1:{port}/api"
    with contextlib.ExitStack() as parents:
        with prefect_api(home, port=port):
            parent = parents.enter_context(parent_of(run))
            first = until_working(run, "trainer", "generator-0")
        os.kill(first["generator-0"], signal.SIGKILL)
        until_gone(first["generator-0"])
        monkeypatch.delenv("PREFECT_API_URL", raising=False)
        with prefect_api(home, port=port), temporary_settings({PREFECT_API_URL: url}):
            until(lambda: pids(run)["generator-0"] != first["generator-0"], "the generator's second life")
            assert pids(run)["trainer"] == first["trainer"]
            (run.folder / "finish").touch()
            assert parent.wait() == 0
            assert state_of(run.run_id) == "Completed"
            assert children_of(run) == {"trainer": ["Completed"], "generator-0": ["Crashed", "Completed"]}
