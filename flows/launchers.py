"""Where children run: as processes of this machine, or through a work pool. Either way linked under the parent run."""

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from typing import Any
from uuid import UUID, uuid4

from prefect import Flow, Task
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.flow_engine import run_flow_in_subprocess
from prefect.states import Cancelled, Cancelling, Pending

from flows.child import ending_file, output_file, read_ending, state_of
from flows.states import API_AWAY, api_answers, impatient, impatient_client, read_run, settle
from flows.supervisor import Child, Ending
from flows.watch import PARENT_PID
from offbeat.errors import RunFailed
from offbeat.runs import Run

logger = logging.getLogger(__name__)

Entry = Callable[[str], tuple[Flow[..., Any], dict[str, Any]]]

READY_INTERVAL_S = 2.0
LINGER_S = 10.0
POLL_S = 2.0

# One thread each: the configuration says how many torch may use, and the other libraries must not add to them.
CHILD_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class ProcessChild:
    """A child in a process of this machine."""

    def __init__(self, process: BaseProcess, run: Run, role: str, told: Callable[[State], None]) -> None:
        self._process = process
        self._run = run
        self._role = role
        self._told = told
        self._asked = False
        self._ending: Ending | None = None
        self._spoken_at: float | None = None

    def ending(self) -> Ending | None:
        """How it ended: what it said itself, else what its exit code says."""
        if self._ending is None and (not self._process.is_alive() or self._lingers()):
            self._process.join()
            self._ending = read_ending(self._run, self._role) or self._silent_ending()
            self._told(state_of(self._ending))
        return self._ending

    def stop(self) -> None:
        """SIGTERM: keep the state and end."""
        self._asked = True
        if self._process.is_alive():
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self.ending()

    def _lingers(self) -> bool:
        """Whether it has ended its work but cannot tell Prefect; then the process is ended here."""
        if read_ending(self._run, self._role) is None:
            return False
        self._spoken_at = self._spoken_at or time.monotonic()
        if time.monotonic() - self._spoken_at < LINGER_S:
            return False
        self._process.kill()
        return True

    def _silent_ending(self) -> Ending:
        code = self._process.exitcode or 0
        if self._asked and code == -signal.SIGTERM:
            return Ending(outcome="cancelled", detail="stopped before its work began")
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Ending(outcome="killed", detail=f"{how}, without a word")


class ProcessLauncher:
    """Children as processes of this machine, each a subflow run of the calling flow run."""

    def __init__(self, run: Run, entry: Entry) -> None:
        self._run = run
        self._entry = entry
        self._unsettled: dict[UUID, State] = {}
        self._answered_at = float("-inf")

    def ready(self) -> bool:
        """Whether the API answers, asked at most every two seconds."""
        now = time.monotonic()
        if now - self._answered_at < READY_INTERVAL_S:
            return True
        if api_answers():
            self._answered_at = now
            return True
        return False

    def launch(self, role: str) -> Child | None:
        """Start a child process, linked under the calling flow run."""
        flow, parameters = self._entry(role)
        try:
            flow_run = _create_subflow_run(flow, parameters, name=f"{self._run.run_id}-{role}")
        except API_AWAY as error:
            logger.warning("%s cannot start while the Prefect API is away: %s", role, error)
            self._answered_at = float("-inf")
            return None
        ending_file(self._run, role).unlink(missing_ok=True)
        # Ctrl-C reaches every process of a terminal. Children hear of it from here alone, so that all stop in order;
        # a blocked signal stays blocked in the started process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            process = run_flow_in_subprocess(flow, flow_run=flow_run, parameters=parameters, env=_child_environment())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return ProcessChild(process, self._run, role, lambda state: self._settle(flow_run.id, state))

    def output_of(self, role: str) -> str:
        """The file that the child's output goes to."""
        return str(output_file(self._run, role))

    def settle(self) -> bool:
        """Tell Prefect how children ended that could not say so themselves; True when nothing is left to tell."""
        for flow_run_id, state in list(self._unsettled.items()):
            if settle(flow_run_id, state):
                del self._unsettled[flow_run_id]
        return not self._unsettled

    def _settle(self, flow_run_id: UUID, state: State) -> None:
        if not settle(flow_run_id, state):
            self._unsettled[flow_run_id] = state


class DeploymentChild:
    """A child that a worker runs, seen through its Prefect state."""

    def __init__(self, flow_run_id: UUID) -> None:
        self._flow_run_id = flow_run_id
        self._looked_at = float("-inf")
        self._ending: Ending | None = None
        self._waits_for_worker = True

    def ending(self) -> Ending | None:
        """How it ended, asked at most every two seconds; None also while the API is away."""
        now = time.monotonic()
        if self._ending is None and now - self._looked_at >= POLL_S:
            self._looked_at = now
            found = read_run(self._flow_run_id)
            if found is not None and found.state is not None:
                self._waits_for_worker = found.state.is_scheduled()
                self._ending = ending_of(found.state)
        return self._ending

    def stop(self) -> None:
        """Cancel it: its worker and its own watch both see that."""
        settle(self._flow_run_id, Cancelled() if self._waits_for_worker else Cancelling())

    def kill(self) -> None:
        """Call it cancelled; its worker ends the process."""
        settle(self._flow_run_id, Cancelled(message="did not stop in time"))
        self._looked_at = float("-inf")


class DeploymentLauncher:
    """Children as runs of the deployments `generator/generator` and `trainer/trainer`."""

    def __init__(self, run: Run, entry: Entry) -> None:
        self._run = run
        self._entry = entry

    def ready(self) -> bool:
        """Whether the API answers."""
        return api_answers()

    def launch(self, role: str) -> Child | None:
        """Schedule a run of the role's deployment, linked under the calling flow run."""
        flow, parameters = self._entry(role)
        try:
            with impatient():
                flow_run: Any = run_deployment(
                    f"{flow.name}/{flow.name}",
                    parameters=parameters,
                    timeout=0,
                    flow_run_name=f"{self._run.run_id}-{role}",
                    tags=[self._run.run_id],
                )
        except API_AWAY as error:
            logger.warning("%s cannot start: %s", role, error)
            return None
        return DeploymentChild(flow_run.id)

    def output_of(self, role: str) -> str:
        """Prefect keeps the logs of these runs."""
        return f"the logs of flow run {self._run.run_id}-{role}"

    def settle(self) -> bool:
        """Nothing to tell: workers tell how their children ended."""
        return True


def ending_of(state: State) -> Ending | None:
    """What a final Prefect state says of a child; None for any other state."""
    if not state.is_final():
        return None
    detail = state.message or ""
    if state.is_completed():
        return Ending(outcome="finished", detail=detail)
    if state.is_cancelled():
        return Ending(outcome="cancelled", detail=detail)
    if state.is_crashed():
        return Ending(outcome="killed", detail=detail)
    return Ending(outcome="refused" if state.name == "Refused" else "failed", detail=detail)


def _create_subflow_run(flow: Flow[..., Any], parameters: Mapping[str, Any], *, name: str) -> FlowRun:
    """A flow run under the calling one, made here so that its id is known even if its process never speaks."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise RunFailed("children can only be launched from inside a flow run")
    link = Task(name=flow.name, fn=_nothing)
    with impatient_client() as client:
        parent = client.create_task_run(
            task=link, flow_run_id=context.flow_run.id, dynamic_key=f"{name}-{uuid4()}", name=name, state=Pending()
        )
        return client.create_flow_run(
            flow, name=name, parameters=dict(parameters), parent_task_run_id=parent.id, state=Pending()
        )


def _nothing() -> None:
    """Stands for the subflow in the parent's graph."""


def _child_environment() -> dict[str, str | None]:
    return {**CHILD_ENVIRONMENT, PARENT_PID: str(os.getpid())}
