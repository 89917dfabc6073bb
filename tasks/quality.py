"""Quality: Great Expectations suites over sampled trajectories and over the evaluation."""

from prefect import task

from offbeat.lifecycle.stages import check_scores, check_trajectories
from offbeat.quality import QualityReport
from offbeat.runs import Run
from offbeat.workloads import Scores
from tasks.patience import PATIENT


@task(name="quality-of-trajectories", timeout_seconds=1800, **PATIENT)
def quality_of_trajectories(run: Run) -> QualityReport | None:
    """The suite's result over the newest trajectories; None when there are none."""
    return check_trajectories(run)


@task(name="quality-of-evaluation", timeout_seconds=1800, **PATIENT)
def quality_of_evaluation(run: Run, scores: Scores) -> QualityReport:
    """The suite's result over the evaluation's scores."""
    return check_scores(run, scores)
