"""What `offbeat serve` keeps running on this machine, in the order it starts and the reverse order it stops:

Prefect server ──> MLflow server ──> work pool, deployments of prefect.yaml ──> worker ──> (until Ctrl-C)
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from offbeat.cli.prefect_server import free_port, guarded_process, prefect_api
from offbeat.errors import NotReady

POOL = "offbeat-process"
JOB_TEMPLATE = Path("deployments/job-templates/process.json")
COMMAND_TIMEOUT_S = 300.0
HEALTHY_WITHIN_S = 180.0
POLL_S = 0.5

Process = subprocess.Popen[bytes]
Say = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The addresses of what runs, and its processes by name."""

    prefect: str
    mlflow: str
    processes: dict[str, Process]


def serve(home: Path, say: Say, *, prefect_port: int = 0, mlflow_port: int = 0) -> None:
    """Keep everything running until Ctrl-C; nothing of it is left when this returns or raises.

    Must be called in the top folder of the repository. Raises NotReady when a part does not start, or ends by itself.
    """
    with serving(home, say, prefect_port=prefect_port, mlflow_port=mlflow_port) as stack:
        say(f"Prefect  {stack.prefect.removesuffix('/api')}")
        say(f"MLflow   {stack.mlflow}")
        say("start a run in the Prefect UI, or in another terminal, with .venv activated:")
        say(f"  PREFECT_API_URL={stack.prefect} prefect deployment run lifecycle/cartpole")
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                _check_all_alive(stack, home)
                time.sleep(POLL_S)
        say("stopping")


@contextmanager
def serving(home: Path, say: Say, *, prefect_port: int = 0, mlflow_port: int = 0) -> Iterator[Stack]:
    """Everything that `serve` runs, for the length of the block."""
    if not Path("prefect.yaml").is_file():
        raise NotReady(f"no prefect.yaml in {Path.cwd()}; call this in the top folder of the repository")
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        say("starting a Prefect server")
        api_url = stack.enter_context(prefect_api(home, full=True, port=prefect_port))
        environment = _environment(home, api_url)
        say("starting an MLflow server")
        mlflow_url = f"http://127.0.0.1:{mlflow_port or free_port()}"
        mlflow = stack.enter_context(
            guarded_process(_mlflow_command(home, mlflow_url), log=home / "mlflow-server.log", env=environment)
        )
        say("registering the deployments of prefect.yaml")
        template = ["--base-job-template", str(JOB_TEMPLATE)]
        _prefect(["work-pool", "create", POOL, "--type", "process", "--overwrite", *template], environment)
        _prefect(["--no-prompt", "deploy", "--all"], environment)
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
        worker = stack.enter_context(guarded_process(command, log=home / "worker.log", env=environment))
        _wait_for(mlflow_url, mlflow, home / "mlflow-server.log")
        yield Stack(prefect=api_url, mlflow=mlflow_url, processes={"mlflow-server": mlflow, "worker": worker})


def _environment(home: Path, api_url: str) -> dict[str, str]:
    return {
        **os.environ,
        "PREFECT_API_URL": api_url,
        "OFFBEAT_HOME": str(home.absolute()),
        "PREFECT_RUNNER_POLL_FREQUENCY": "2",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def _mlflow_command(home: Path, url: str) -> list[str]:
    host, port = url.removeprefix("http://").split(":")
    database = f"sqlite:///{home.absolute() / 'mlflow.db'}"
    places = ["--backend-store-uri", database, "--artifacts-destination", str(home.absolute() / "mlartifacts")]
    return [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", port, "--workers", "1", *places]


def _prefect(arguments: list[str], environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "prefect", *arguments]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise NotReady(f"`prefect {' '.join(arguments)}` took longer than {COMMAND_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise NotReady(f"`prefect {' '.join(arguments)}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _wait_for(url: str, process: Process, log: Path) -> None:
    deadline = time.monotonic() + HEALTHY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=5.0).status_code == httpx.codes.OK:
                return
        time.sleep(POLL_S)
    raise NotReady(f"the MLflow server at {url} did not come up; what it printed is in {log}")


def _check_all_alive(stack: Stack, home: Path) -> None:
    for name, process in stack.processes.items():
        if process.poll() is not None:
            raise NotReady(f"{name} ended with code {process.returncode}; what it printed is in {home / name}.log")
