"""Gate and promote: decide whether the challenger becomes the champion, and make it so."""

from prefect import task

from offbeat.evaluation import Verdict
from offbeat.lifecycle.stages import judge
from offbeat.registry import ModelVersion, Registry
from offbeat.runs import Run
from offbeat.workloads import Scores
from tasks.patience import PATIENT


@task(name="gate", timeout_seconds=6 * 3600, **PATIENT)
def gate(run: Run, registry: Registry, scores: Scores, failed_checks: tuple[str, ...]) -> Verdict:
    """The verdict, against the champion on the same seeds and the configured thresholds."""
    return judge(run, registry, scores, failed_checks=failed_checks)


@task(name="promote", timeout_seconds=600, **PATIENT)
def promote(registry: Registry, version: ModelVersion) -> None:
    """Move the alias `champion` to this version."""
    registry.promote(version.name, version.version)
