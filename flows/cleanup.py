"""Clean up a run on demand: the same as at the end of every lifecycle."""

from dataclasses import asdict
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from offbeat.runs import Run
from tasks.cleanup import cleanup as clean_up_run


@flow(name="cleanup", description="Deletes old checkpoints and trajectories of a run that nothing refers to.")
def cleanup(
    run: Annotated[str, Field(min_length=1)],
) -> dict[str, Any]:
    """What was deleted and trimmed; raises RunLocked while the run is at work.

    Args:
        run: Id of the run, or its folder.
    """
    opened = Run.open(run)
    with opened.hold("lifecycle"):
        return asdict(clean_up_run(opened))
