"""Evaluate: greedy episodes on fixed seeds."""

from prefect import task

from offbeat.evaluation import evaluate_policy
from offbeat.runs import Run
from offbeat.trainer.checkpoint import Checkpoint
from offbeat.workloads import Scores
from tasks.patience import PATIENT


@task(name="evaluate", timeout_seconds=6 * 3600, **PATIENT)
def evaluate(run: Run, checkpoint: Checkpoint) -> Scores:
    """One score for each of the run's evaluation seeds."""
    return evaluate_policy(run, checkpoint.folder)
