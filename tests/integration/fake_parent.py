"""A lifecycle of nothing but its training part, with fake children: `python fake_parent.py RUN_FOLDER`."""

import sys
import threading
from typing import Any
from uuid import UUID

from fake_children import fake_generator, fake_trainer
from prefect import Flow, flow, runtime
from prefect.states import Cancelled, Completed, State

from flows.launchers import ProcessLauncher
from flows.lifecycle import stop_children
from flows.states import await_api, name_run
from flows.training import train
from flows.watch import StopWatch
from offbeat.errors import RunCancelled
from offbeat.runs import Run


@flow(name="fake-lifecycle", on_failure=[stop_children], on_crashed=[stop_children])
def fake_lifecycle(folder: str) -> State[Any]:
    run = Run.open(folder)
    stop = threading.Event()

    def entry(role: str) -> tuple[Flow[..., Any], dict[str, Any]]:
        if role == "trainer":
            return fake_trainer, {"run": folder}
        return fake_generator, {"run": folder, "index": int(role.removeprefix("generator-"))}

    launcher = ProcessLauncher(run, entry)
    name_run(UUID(runtime.flow_run.id), run.run_id)
    try:
        with StopWatch(stop, UUID(runtime.flow_run.id)) as watch:
            train(run, launcher, stop, watch)
    except RunCancelled as error:
        return Cancelled(message=str(error))
    finally:
        await_api()
        launcher.settle()
    return Completed()


if __name__ == "__main__":
    fake_lifecycle(sys.argv[1], return_state=True)
