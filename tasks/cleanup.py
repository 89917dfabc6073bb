"""Cleanup: retention of checkpoints and trajectories, at the end of every run."""

from prefect import task

from offbeat.lifecycle.cleanup import Cleanup, clean_up
from offbeat.lifecycle.relay import open_registry
from offbeat.runs import Run
from tasks.patience import ONCE


@task(name="cleanup", timeout_seconds=1800, **ONCE)
def cleanup(run: Run) -> Cleanup:
    """What was deleted and trimmed; never a checkpoint that something refers to."""
    return clean_up(run, open_registry)
