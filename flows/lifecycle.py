"""The whole life of a run, as a recipe:

provision ──> prepare ──> generators and trainer, side by side ──> verify ──> evaluate ──> quality ──┐
         │                                                             promote <── gate <── register <──┘
         └──> cleanup, always, whatever happened
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from prefect import flow, runtime
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import TerminationSignal
from prefect.flows import Flow
from prefect.states import Cancelled, Cancelling
from pydantic import Field

from flows.judgement import conclude, judge
from flows.observer import Observer
from flows.states import API_AWAY, await_api, name_run, settle, settle_abandoned, unfinished_children
from flows.training import make_launcher, train
from flows.watch import StopWatch
from offbeat.errors import RunCancelled
from offbeat.runs import RUN_ID, Run
from tasks.cleanup import cleanup
from tasks.evaluate import evaluate
from tasks.prepare import prepare
from tasks.provision import provision
from tasks.verify import verify

logger = logging.getLogger(__name__)

# Prefect takes the descriptions that its form shows from the flow's docstring.
ConfigName = Annotated[str, Field(min_length=1)]
Overrides = dict[str, Any] | list[str] | None
RunId = Annotated[str | None, Field(pattern=f"^(?:{RUN_ID.pattern})$")]


def stop_children(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Let no child outlive its parent run: what still works is told to stop, through its Prefect state."""
    try:
        for child in unfinished_children(flow_run.id):
            settle(child.id, Cancelling(message=f"its parent run ended as {state.name}"))
    except API_AWAY as error:
        logger.warning("children of %s could not be told to stop: %s", flow_run.name, error)


@flow(
    name="lifecycle",
    description="One asynchronous reinforcement-learning run, from provisioning to a promoted model.",
    on_failure=[stop_children],
    on_crashed=[stop_children],
    on_cancellation=[stop_children],
)
def lifecycle(
    config: ConfigName, overrides: Overrides = None, run_id: RunId = None, resume: bool = False
) -> dict[str, Any] | State[Any]:
    """Carry a run from its configuration to the gate's verdict, and return its final account.

    Args:
        config: Run configuration: a YAML file, or the name of one in deployments/.
        overrides: Keys that differ from the file: a mapping (`training.max_steps` to 200), or a list of `key=value`.
        run_id: Id of the run; by default the configuration's name and the time.
        resume: Continue the run with this id from its newest valid checkpoint.
    """
    started = time.monotonic()
    run = provision(config, overrides or {}, run_id, resume)
    flow_run_id = UUID(runtime.flow_run.id)
    name_run(flow_run_id, run.run_id)
    with run.hold("lifecycle"):
        settle_abandoned(run.run_id, successor=flow_run_id)
        try:
            return _carry_through(run, started)
        except (RunCancelled, KeyboardInterrupt, TerminationSignal) as error:
            return Cancelled(
                message=f"{str(error) or type(error).__name__}; continue it with `offbeat resume {run.run_id}`"
            )
        finally:
            cleanup(run, return_state=True)
            await_api()


def run_lifecycle(
    config: str, overrides: dict[str, Any] | Sequence[str] = (), *, run_id: str | None = None, resume: bool = False
) -> dict[str, Any]:
    """Run the flow here and return its final account; raises the run's own error, RunCancelled if it was cancelled."""
    wanted = overrides if isinstance(overrides, dict) else list(overrides)
    state: State[Any] = lifecycle(config, wanted, run_id, resume, return_state=True)
    if state.is_cancelled():
        raise RunCancelled(state.message or "the run was cancelled")
    report: dict[str, Any] = state.result()
    return report


def _carry_through(run: Run, started: float) -> dict[str, Any]:
    stop, flow_run_id = threading.Event(), UUID(runtime.flow_run.id)
    launcher = make_launcher(run)
    prepare(run)
    with Observer(run, flow_run_id=str(flow_run_id)) as observer, StopWatch(stop, flow_run_id) as watch:
        with observer.watching():
            train(run, launcher, stop, watch)
        checkpoint = verify(run)
        scores = evaluate(run, checkpoint)
        if stop.is_set():
            raise RunCancelled(f"run {run.run_id} was stopped: {watch.reason}")
        judgement = judge(run, observer, checkpoint, scores)
        launcher.settle()
    return conclude(run, judgement, wall_seconds=time.monotonic() - started)
