"""One generator as a long-running subflow; the work is offbeat.generator's."""

from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import Field

from flows.child import run_child


@flow(name="generator", description="Acts with the newest policy and appends trajectories until training is done.")
def generator(
    run: Annotated[str, Field(min_length=1)],
    index: Annotated[int, Field(ge=0)] = 0,
) -> State[Any]:
    """Generate until training is finished or this run is cancelled.

    Args:
        run: Folder of the run, or its id under OFFBEAT_HOME.
        index: Which of the run's generators this is, counted from 0.
    """
    from offbeat.generator import run_generator

    return run_child(run, f"generator-{index}", lambda opened, stop: run_generator(opened, index, stop=stop))
