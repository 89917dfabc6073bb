"""Verify: every byte of the newest checkpoint, here and in the store."""

from prefect import task

from offbeat.lifecycle.stages import verify_newest
from offbeat.runs import Run
from offbeat.trainer.checkpoint import Checkpoint
from tasks.patience import PATIENT


@task(name="verify", timeout_seconds=1800, **PATIENT)
def verify(run: Run) -> Checkpoint:
    """The newest checkpoint, equal to its manifest and its stored copy; raises CheckpointError with every fault."""
    return verify_newest(run)
