"""The trainer as a long-running subflow; the work is offbeat.trainer's."""

from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import Field

from flows.child import run_child


@flow(name="trainer", description="Learns from the run's trajectories, publishes policies and writes checkpoints.")
def trainer(
    run: Annotated[str, Field(min_length=1)],
) -> State[Any]:
    """Train to the last step, from wherever the run stands, or until this run is cancelled.

    Args:
        run: Folder of the run, or its id under OFFBEAT_HOME.
    """
    from offbeat.trainer import run_trainer

    return run_child(run, "trainer", lambda opened, stop: run_trainer(opened, stop=stop))
