"""Children that load no torch and do as the files in their run's folder say: `finish`, and `<role>.<fault>`."""

import os
import threading
import time

from prefect import flow
from prefect.client.schemas.objects import State

from flows.child import Body, run_child
from offbeat.errors import ConfigError
from offbeat.runs import Run, write_status


def _body(role: str) -> Body:
    def work(run: Run, stop: threading.Event) -> None:
        if _take(run, role, "refuse"):
            raise ConfigError("this machine will never do")
        stuck = _take(run, role, "stand-still")
        store = run.open_store()
        beats = 0
        while not (run.folder / "finish").exists():
            beats += not (stuck and beats > 3)
            write_status(store, role, {"pid": os.getpid(), "progress": beats, "updated_at_ns": time.time_ns()})
            if stop.wait(0.1):
                return

    return work


def _take(run: Run, role: str, fault: str) -> bool:
    path = run.folder / f"{role}.{fault}"
    there = path.exists()
    path.unlink(missing_ok=True)
    return there


@flow(name="fake-generator")
def fake_generator(run: str, index: int) -> State:
    return run_child(run, f"generator-{index}", _body(f"generator-{index}"))


@flow(name="fake-trainer")
def fake_trainer(run: str) -> State:
    return run_child(run, "trainer", _body("trainer"))
