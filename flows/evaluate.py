"""Evaluate a run's newest checkpoint on demand; registers and promotes nothing."""

from typing import Annotated

from prefect import flow
from pydantic import Field

from offbeat.evaluation import summarise
from offbeat.lifecycle.provisioning import read_baseline
from offbeat.lifecycle.report import evaluation_numbers
from offbeat.runs import Run
from tasks.evaluate import evaluate as evaluate_checkpoint
from tasks.observe import show_evaluation, show_samples
from tasks.verify import verify


@flow(name="evaluate", description="Scores the newest checkpoint of a run on the run's evaluation seeds.")
def evaluate(
    run: Annotated[str, Field(min_length=1)],
) -> dict[str, float]:
    """The evaluation by name, also kept as a table artifact; raises CheckpointError for a damaged checkpoint.

    Args:
        run: Id of the run, or its folder.
    """
    opened = Run.open(run)
    scores = evaluate_checkpoint(opened, verify(opened))
    evaluation = summarise(scores, opened.config.evaluation.confidence)
    show_evaluation(opened.run_id, evaluation, read_baseline(opened), return_state=True)
    if scores.samples:
        show_samples(opened.run_id, scores.samples, return_state=True)
    return evaluation_numbers(evaluation)
