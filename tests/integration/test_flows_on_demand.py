"""The flows that a person starts on a run that is there already: evaluate and cleanup."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from flows.cleanup import cleanup
from flows.evaluate import evaluate
from offbeat.config import RunConfig
from offbeat.errors import CheckpointError, PositionOutOfRange, RunLocked
from offbeat.evaluation import evaluate_policy
from offbeat.ledger import read_account
from offbeat.lifecycle.lineage import lineage_tags
from offbeat.lifecycle.relay import open_registry
from offbeat.lifecycle.stages import register_checkpoint
from offbeat.runs import Run, read_status
from offbeat.trainer.checkpoint import list_checkpoints, stored_steps
from offbeat.trainer.replay import replay
from tests.sides import Sides, small_config

pytestmark = pytest.mark.timeout(600)
KEEP = 2


def configuration() -> RunConfig:
    """16 steps with a checkpoint every 4; what is old and may go is decided by `cleaned` alone."""
    config = small_config(max_steps=16)
    strategy = config.strategy.model_copy(update={"checkpoint_freq": 4, "keep_checkpoints": 100})
    evaluation = config.evaluation.model_copy(update={"episodes": 6, "max_episode_steps": 40})
    return config.model_copy(update={"strategy": strategy, "evaluation": evaluation})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with checkpoints 0, 4, 8, 12 and 16; not to be changed."""
    run = Run.create(configuration(), run_id="finished", home=tmp_path_factory.mktemp("runs"))
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_until_done(run)
    assert steps_of(run) == [0, 4, 8, 12, 16]
    return run


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Run:
    """A copy of it, in which two checkpoints and hardly any age of trajectories are kept."""
    shutil.copytree(finished.home, tmp_path / "runs")
    run = Run.open("finished", home=tmp_path / "runs")
    strategy = run.config.strategy.model_copy(update={"keep_checkpoints": KEEP})
    log = run.config.log.model_copy(update={"retention_s": 1e-6})
    return run.changed(run.config.model_copy(update={"strategy": strategy, "log": log}))


def steps_of(run: Run) -> list[int]:
    return [found.step for found in list_checkpoints(run.checkpoints)]


def begins(run: Run) -> dict[int, int]:
    log = run.open_log()
    try:
        return {partition: log.begin("trajectories", partition) for partition in range(log.num_partitions)}
    finally:
        log.close()


def table_of(key: str) -> list[dict[str, Any]]:
    with get_client(sync_client=True) as client:
        (found,) = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    rows: list[dict[str, Any]] = json.loads(str(found.data))
    return rows


def test_evaluate_scores_the_newest_checkpoint_and_registers_nothing(run: Run, prefect_url: str) -> None:
    numbers = evaluate(str(run.folder))
    scores = evaluate_policy(run, run.checkpoints / "step-000000016")
    assert numbers["episodes"] == len(scores.values) == 6
    assert numbers["return_mean"] == pytest.approx(np.mean(scores.values))
    assert (numbers["return_min"], numbers["return_max"]) == (scores.values.min(), scores.values.max())
    assert numbers["return_ci_low"] <= numbers["return_mean"] <= numbers["return_ci_high"]
    assert {row["measure"]: row["value"] for row in table_of("finished-evaluation")} == pytest.approx(numbers)
    assert evaluate(str(run.folder)) == numbers
    assert not (run.home / "mlflow.db").exists()
    assert steps_of(run) == [0, 4, 8, 12, 16]


def test_evaluate_refuses_a_damaged_checkpoint(run: Run, prefect_url: str) -> None:
    victim = run.checkpoints / "step-000000016" / "policy" / "policy.safetensors"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"step 16 is damaged: .*policy\.safetensors: MD5 is"):
        evaluate(str(run.folder))


def test_cleanup_keeps_what_is_newest_or_referenced_and_the_account(run: Run, prefect_url: str) -> None:
    checkpoint = list_checkpoints(run.checkpoints)[1]
    registry = open_registry(run)
    mlflow_id = registry.start_run(run.run_id, params={}, tags={})
    tags = lineage_tags(run, checkpoint, flow_run_id="none")
    register_checkpoint(run, registry, checkpoint, mlflow_id=mlflow_id, tags=tags)
    before, needed = read_account(run), checkpoint.resolved.cursors
    done = cleanup(str(run.folder))
    assert done == {"deleted": (0, 8), "trimmed": {partition: needed[partition].position for partition in (0, 1)}}
    assert steps_of(run) == stored_steps(run.open_store()) == [4, 12, 16]
    assert begins(run) == {partition: cursor.position for partition, cursor in needed.items()}
    assert read_account(run) == before
    assert (before.steps, before.trained, before.difference) == (16, 16 * 32, 0)
    assert {status["phase"] for status in read_status(run.open_store()).values()} == {"stopped"}
    report = replay(run, first=5)
    assert (report.started_from, report.steps, report.divergences) == (4, 12, ())
    with pytest.raises(PositionOutOfRange):
        replay(run, first=1)
    assert cleanup(str(run.folder)) == {"deleted": (), "trimmed": {}}


def test_cleanup_leaves_a_run_at_work_alone(run: Run, prefect_url: str) -> None:
    with run.hold("lifecycle"), pytest.raises(RunLocked):
        cleanup(str(run.folder))
    assert steps_of(run) == [0, 4, 8, 12, 16]
    assert begins(run) == {0: 0, 1: 0}


def test_cleanup_deletes_nothing_while_the_registry_is_away(run: Run, prefect_url: str) -> None:
    registry = run.config.registry.model_copy(update={"tracking_uri": "http://127.0.0.1:9"})
    away = run.changed(run.config.model_copy(update={"registry": registry}))
    done = cleanup(str(away.folder))
    assert done["deleted"] == ()
    assert steps_of(run) == [0, 4, 8, 12, 16]
    # Checkpoint 0 has nothing behind it and is kept, so the whole log is needed.
    assert (done["trimmed"], begins(run)) == ({}, {0: 0, 1: 0})
