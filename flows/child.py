"""What every long-running subflow does around its library call: hear the stop, tell how it ended.

How it ended is told twice: as the Prefect state, and as a small file beside its output, which the supervisor of the
same machine believes also while the Prefect API is away.
"""

import atexit
import gc
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from prefect import runtime
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows.states import settle
from flows.supervisor import Ending
from flows.watch import PARENT_PID, StopWatch, stopped_by_signals
from offbeat.errors import ConfigError, LogDamaged, LogprobMismatch, NotReady, OffbeatError
from offbeat.runs import Run

logger = logging.getLogger(__name__)

Body = Callable[[Run, threading.Event], None]


def run_child(folder: str, role: str, body: Body) -> State:
    """Call `body` with the run and a stop event, and return the state that tells the truth of it.

    A wrong configuration or machine, or a damaged log, ends as Failed with the name 'Refused': starting it again cannot
    help.
    """
    run = Run.open(folder)
    if PARENT_PID in os.environ:
        _redirect_output(output_file(run, role))
        # Its end is waited for: spare it a last look through every object of torch, MLflow and Prefect.
        atexit.register(gc.freeze)
    stop = threading.Event()
    parent = runtime.flow_run.parent_flow_run_id
    watch = StopWatch(stop, UUID(runtime.flow_run.id), parent=UUID(parent) if parent else None)
    with stopped_by_signals(stop, until_exit=PARENT_PID in os.environ), watch:
        ending = _called(run, role, body, stop)
    if ending.outcome == "cancelled" and watch.reason:
        logger.warning("%s stopped: %s", role, watch.reason)
    if watch.parent_died and parent:
        # Nobody else can say so: the parent was killed, and its own words ended with it.
        settle(UUID(parent), Crashed(message=f"its process is gone; continue with `offbeat resume {run.run_id}`"))
        settle(UUID(runtime.flow_run.id), state_of(ending))
        _leave()
    return state_of(ending)


def state_of(ending: Ending) -> State:
    """The Prefect state of an ending."""
    if ending.outcome == "finished":
        return Completed(message=ending.detail or None)
    if ending.outcome == "cancelled":
        return Cancelled(message=ending.detail or "stopped; its state is kept")
    if ending.outcome == "killed":
        return Crashed(message=ending.detail)
    return Failed(name="Refused" if ending.outcome == "refused" else "Failed", message=ending.detail)


def output_file(run: Run, role: str) -> Path:
    """Where a child on this machine prints to."""
    return run.folder / "output" / f"{role}.log"


def ending_file(run: Run, role: str) -> Path:
    """Where a child on this machine tells how it ended."""
    return run.folder / "output" / f"{role}.ending.json"


def read_ending(run: Run, role: str) -> Ending | None:
    """How the child said that it ended; None while it has not."""
    try:
        return Ending(**json.loads(ending_file(run, role).read_text()))
    except FileNotFoundError:
        return None


def _called(run: Run, role: str, body: Body, stop: threading.Event) -> Ending:
    try:
        body(run, stop)
    except OffbeatError as error:
        logger.error("%s failed: %s: %s", role, type(error).__name__, error)
        refused = isinstance(error, ConfigError | NotReady | LogDamaged | LogprobMismatch)
        ending = Ending(outcome="refused" if refused else "failed", detail=f"{type(error).__name__}: {error}")
    except BaseException as error:
        _write_ending(run, role, Ending(outcome="failed", detail=f"{type(error).__name__}: {error}"))
        raise
    else:
        ending = Ending(outcome="cancelled" if stop.is_set() else "finished")
    _write_ending(run, role, ending)
    return ending


def _write_ending(run: Run, role: str, ending: Ending) -> None:
    path = ending_file(run, role)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({"outcome": ending.outcome, "detail": ending.detail}))
    partial.replace(path)


def _leave() -> None:
    """End the process at once: Prefect would try for minutes to reach a server that may have died with the parent."""
    logging.shutdown()
    os._exit(0)


def _redirect_output(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab") as file:
        os.dup2(file.fileno(), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        os.dup2(file.fileno(), sys.__stderr__.fileno() if sys.__stderr__ else 2)
