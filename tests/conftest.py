"""What holds for every test: nothing calls home, nothing is written outside tmp_path, no process is left behind."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "OFFBEAT_TEST_SESSION"

# Libraries read these when they are imported, so they are set before any test module is; children inherit them.
os.environ |= {
    "DO_NOT_TRACK": "true",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "SDL_AUDIODRIVER": "dummy",
    "SDL_VIDEODRIVER": "dummy",
    MARK: str(os.getpid()),
}
# What a person's shell may hold must not decide what a test sees.
for _name in (
    "BATCH_SIZE",
    "BUFFER_CAPACITY",
    "SYNC_INTERVAL",
    "GRADIENT_CLIP",
    "MLFLOW_TRACKING_URI",
    "PREFECT_API_URL",
):
    os.environ.pop(_name, None)

_prefect_home = tempfile.TemporaryDirectory(prefix="offbeat-prefect-", ignore_cleanup_errors=True)
os.environ["PREFECT_HOME"] = _prefect_home.name

import psutil  # noqa: E402
import pytest  # noqa: E402

LEFT_BEHIND_GRACE_S = 10.0
# multiprocessing keeps one of these for the life of the interpreter; it is nobody's leftover.
KEPT_BY_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@pytest.fixture(autouse=True)
def _runs_stay_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFBEAT_HOME", str(tmp_path / "runs"))


@pytest.fixture(autouse=True)
def _no_process_left_behind() -> Iterator[None]:
    before = set(psutil.pids())
    yield
    deadline = time.monotonic() + LEFT_BEHIND_GRACE_S
    while (left := _started_since(before)) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.05)
    if left:
        names = [f"{process.pid}: {_command(process)}" for process in left]
        for process in left:
            process.kill()
        pytest.fail("the test left processes behind:\n" + "\n".join(names))


def _started_since(before: set[int]) -> list[psutil.Process]:
    """Processes of this test session, orphans among them: the mark is inherited and outlives a parent."""
    found = []
    for pid in set(psutil.pids()) - before:
        try:
            process = psutil.Process(pid)
            ours = process.environ().get(MARK) == str(os.getpid())
            if ours and process.status() != psutil.STATUS_ZOMBIE and not _kept_by_python(process):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _kept_by_python(process: psutil.Process) -> bool:
    return any(name in _command(process) for name in KEPT_BY_PYTHON)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "gone"
