"""Verify, check, register and judge a trained policy: one function a stage, each callable again after a failure."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from offbeat.errors import CheckpointError
from offbeat.evaluation import Verdict, decide, evaluate_champion, summarise
from offbeat.learning_curve import draw_learning_curve
from offbeat.ledger import Outcome, read_outcomes
from offbeat.lifecycle.provisioning import read_baseline
from offbeat.lifecycle.report import evaluation_numbers
from offbeat.lifecycle.sampling import sample_trajectories
from offbeat.quality import QualityReport, score_frame, trajectory_frame, validate
from offbeat.registry import ModelVersion, Registry
from offbeat.runs import Run
from offbeat.trainer import checkpoint as checkpoints
from offbeat.trainer.checkpoint import Checkpoint
from offbeat.workloads import Scores

LOADER = "offbeat.workloads.serving"


def verify_newest(run: Run) -> Checkpoint:
    """The newest checkpoint, every byte compared with its manifest and with the stored copy.

    Raises CheckpointError naming every fault, StoreUnavailable when the store does not answer.
    """
    found = checkpoints.list_checkpoints(run.checkpoints)
    if not found:
        raise CheckpointError(f"run {run.run_id} has no checkpoint in {run.checkpoints}")
    newest = found[-1]
    faults = checkpoints.verify(newest.folder)
    if not faults:
        store = run.open_store()
        try:
            faults = checkpoints.compare_with_store(newest, store)
        finally:
            store.close()
    if faults:
        raise CheckpointError(f"checkpoint of step {newest.step} is damaged: {'; '.join(faults)}")
    return newest


def check_trajectories(run: Run) -> QualityReport | None:
    """Hold a sample of the newest trajectories to their suite; None when the log holds none any more."""
    batch = sample_trajectories(run, limit=run.config.observation.quality_sample)
    if batch is None:
        return None
    return validate(trajectory_frame(batch), run.config.workload.kind, run.folder / "quality" / "trajectories")


def check_scores(run: Run, scores: Scores) -> QualityReport:
    """Hold the evaluation's scores to their suite."""
    frame = score_frame(scores.seeds, np.asarray(scores.values))
    folder = run.folder / "quality" / "evaluation"
    # Episodes can be played as often as one likes; prompts are no more than there are.
    wanted = run.config.evaluation.episodes if run.config.workload.kind == "control" else len(scores.seeds)
    return validate(frame, "evaluation", folder, num_rows=wanted)


def register_checkpoint(
    run: Run, registry: Registry, checkpoint: Checkpoint, *, mlflow_id: str, tags: dict[str, str]
) -> ModelVersion:
    """Register the checkpoint's policy as the next version, and keep retention from deleting the checkpoint.

    A version that was registered of the same checkpoint before, by an attempt that failed later, is taken again.
    """
    name = run.config.model_name
    for version in registry.versions(name):
        if version.tags.get("run_id") == run.run_id and version.tags.get("checkpoint_digest") == checkpoint.digest:
            return version
    store = run.open_store()
    try:
        checkpoints.pin(store, checkpoint.step, f"model {name}")
    finally:
        store.close()
    registry.log_artifacts(mlflow_id, checkpoint.folder / checkpoints.MANIFEST, folder="checkpoint")
    return registry.register_version(
        name, run_id=mlflow_id, policy_folder=checkpoint.folder / "policy", loader_module=LOADER, tags=tags
    )


def judge(run: Run, registry: Registry, scores: Scores, *, failed_checks: Sequence[str]) -> Verdict:
    """The gate's verdict on these scores, against the champion on the same seeds and the configured thresholds."""
    champion = evaluate_champion(run, registry)
    return decide(scores, champion.scores, run.config.evaluation, failed_checks=failed_checks, notes=champion.notes)


def keep_learning_curve(run: Run, registry: Registry, *, mlflow_id: str) -> str:
    """Draw the learning curve, keep it in the run's folder and with the MLflow run; returns its address there."""
    outcomes = all_outcomes(run)
    returns = [outcome.metrics.get("episode_return_mean", float("nan")) for outcome in outcomes]
    target = run.config.evaluation.min_return
    figure = draw_learning_curve([o.step for o in outcomes], returns, title=run.run_id, target=target)
    figure.savefig(curve_file(run))
    return registry.log_figure(mlflow_id, figure, "learning_curve.png")


def keep_evaluation(run: Run, registry: Registry, checkpoint: Checkpoint, scores: Scores, *, mlflow_id: str) -> None:
    """Keep the evaluation with the MLflow run: its numbers as `evaluation/...` beside version 0's, its examples."""
    now_ms = int(time.time() * 1000)
    numbers = evaluation_numbers(summarise(scores, run.config.evaluation.confidence))
    found = {checkpoint.step: numbers, 0: read_baseline(run)}
    rows = [(step, now_ms, {f"evaluation/{name}": value for name, value in of.items()}) for step, of in found.items()]
    registry.log_metrics(mlflow_id, rows)
    if scores.samples:
        registry.log_table(mlflow_id, scores.samples, f"samples/{checkpoints.folder_name(checkpoint.step)}.json")


def curve_file(run: Run) -> Path:
    """The learning curve's image in the run's folder."""
    return run.folder / "learning_curve.png"


def all_outcomes(run: Run) -> list[Outcome]:
    """Every finished step, in order."""
    log = run.open_log()
    try:
        return read_outcomes(log)[0]
    finally:
        log.close()
