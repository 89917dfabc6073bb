"""From a verified checkpoint to the gate's verdict, the promoted version and the final account."""

import logging
from dataclasses import dataclass
from typing import Any

from flows.observer import Observer
from offbeat.errors import GateRejected
from offbeat.evaluation import Evaluation, Verdict, summarise
from offbeat.ledger import read_account
from offbeat.lifecycle.provisioning import read_baseline
from offbeat.lifecycle.report import build_report, measure_speed
from offbeat.lifecycle.stages import all_outcomes
from offbeat.registry import ModelVersion
from offbeat.runs import Run
from offbeat.trainer.checkpoint import Checkpoint, folder_name
from offbeat.workloads import Scores
from tasks.observe import show_curve, show_evaluation, show_samples, show_verdict
from tasks.promote import gate, promote
from tasks.quality import quality_of_evaluation, quality_of_trajectories
from tasks.register import keep_curve, keep_evaluation, open_mlflow_run, register

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of a trained policy."""

    evaluation: Evaluation
    verdict: Verdict
    version: ModelVersion
    checkpoint: Checkpoint
    mlflow_id: str


def judge(run: Run, observer: Observer, checkpoint: Checkpoint, scores: Scores) -> Judgement:
    """quality ──> register ──> gate ──> promote. What only shows something may fail without harm."""
    evaluation = summarise(scores, run.config.evaluation.confidence)
    show_evaluation(run.run_id, evaluation, read_baseline(run), return_state=True)
    failed = failed_checks(run, observer, scores)
    mlflow_id = open_mlflow_run(observer.relay)
    registry = observer.relay.registry()
    version = register(run, registry, checkpoint, mlflow_id)
    _show_curve(run, observer, mlflow_id)
    keep_evaluation(run, registry, checkpoint, scores, mlflow_id, return_state=True)
    if scores.samples:
        show_samples(run.run_id, scores.samples, return_state=True)
    verdict = gate(run, registry, scores, failed)
    if verdict.promote:
        promote(registry, version)
    return Judgement(
        evaluation=evaluation, verdict=verdict, version=version, checkpoint=checkpoint, mlflow_id=mlflow_id
    )


def failed_checks(run: Run, observer: Observer, scores: Scores) -> tuple[str, ...]:
    """One sentence for each failed quality check, those seen while training among them."""
    reports = [quality_of_trajectories(run), quality_of_evaluation(run, scores)]
    sentences = [sentence for report in reports if report is not None for sentence in report.failed]
    return tuple(dict.fromkeys([*observer.failed_checks, *sentences]))


def conclude(run: Run, judgement: Judgement, *, wall_seconds: float) -> dict[str, Any]:
    """Write the final account and show the verdict; raises GateRejected where promotion was required and refused."""
    report = _report(run, judgement, wall_seconds)
    run.write_report(report)
    show_verdict(run.run_id, judgement.verdict, _links(run, judgement), return_state=True)
    if not judgement.verdict.promote and run.config.evaluation.require_promotion:
        raise GateRejected(f"{judgement.version.name} version {judgement.version.version}: {_reasons(judgement)}")
    return report


def _report(run: Run, judgement: Judgement, wall_seconds: float) -> dict[str, Any]:
    version, promoted = judgement.version, judgement.verdict.promote
    return build_report(
        run_id=run.run_id,
        status="promoted" if promoted else "rejected",
        account=read_account(run),
        speed=measure_speed(all_outcomes(run)),
        evaluation=judgement.evaluation,
        # The stage before has compared every byte, here and there, or the run would not be here.
        checkpoint={"uri": _checkpoint_uri(run, judgement.checkpoint), "md5_ok": True},
        model={
            "name": version.name,
            "version": version.version,
            "alias": "champion" if promoted else "challenger",
        },
        wall_seconds=wall_seconds,
        baseline=read_baseline(run),
        reasons=judgement.verdict.reasons,
    )


def _links(run: Run, judgement: Judgement) -> dict[str, str]:
    return {
        "MLflow run": f"{judgement.mlflow_id} in {run.config.registry.experiment}",
        "model": judgement.version.uri,
        "checkpoint": _checkpoint_uri(run, judgement.checkpoint),
        "Data Docs of the trajectories": str(run.folder / "quality" / "trajectories" / "index.html"),
        "Data Docs of the evaluation": str(run.folder / "quality" / "evaluation" / "index.html"),
    }


def _checkpoint_uri(run: Run, checkpoint: Checkpoint) -> str:
    store = run.open_store()
    try:
        return store.uri_of(f"checkpoints/{folder_name(checkpoint.step)}")
    finally:
        store.close()


def _show_curve(run: Run, observer: Observer, mlflow_id: str) -> None:
    kept = keep_curve(run, observer.relay.registry(), mlflow_id, return_state=True)
    if kept.is_completed():
        show_curve(run.run_id, kept.result(), return_state=True)


def _reasons(judgement: Judgement) -> str:
    return "; ".join(judgement.verdict.reasons)
