"""The stages after training, each on its own, on a real local store and log and with a registry that only remembers."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat.config import parse_config
from offbeat.errors import CheckpointError
from offbeat.ledger import Outcome, Resolved
from offbeat.ledger.rows import row_entry
from offbeat.lifecycle import stages
from offbeat.registry import ModelVersion
from offbeat.runs import Run
from offbeat.trainer import checkpoint as checkpoints
from offbeat.trainer.checkpoint import Checkpoint
from offbeat.workloads import Scores


class FakeRegistry:
    """Remembers what it was given; there is never a champion."""

    def __init__(self) -> None:
        self.registered: list[ModelVersion] = []
        self.artifacts: list[str] = []
        self.loaders: set[str] = set()
        self.metrics: dict[int, dict[str, float]] = {}

    def versions(self, name: str) -> list[ModelVersion]:
        return [version for version in self.registered if version.name == name]

    def register_version(
        self, name: str, *, run_id: str, policy_folder: Path, loader_module: str, tags: Mapping[str, str]
    ) -> ModelVersion:
        assert (run_id, policy_folder.name) == ("mlflow-1", "policy")
        self.loaders.add(loader_module)
        self.registered.append(ModelVersion(name=name, version=len(self.registered) + 1, uri="", tags=tags))
        return self.registered[-1]

    def log_artifacts(self, run_id: str, path: Path, *, folder: str) -> None:
        self.artifacts.append(f"{folder}/{path.name}")

    def log_figure(self, run_id: str, figure: Any, name: str) -> str:
        return f"{run_id}/{name}"

    def log_metrics(self, run_id: str, rows: Sequence[tuple[int, int, Mapping[str, float]]]) -> None:
        self.metrics |= {step: dict(values) for step, _, values in rows}

    def log_table(self, run_id: str, rows: Sequence[Mapping[str, str]], name: str) -> None:
        self.artifacts.append(f"{name}: {[dict(row) for row in rows]}")

    def champion(self, name: str) -> None:
        return None


@pytest.fixture
def run(tmp_path: Path) -> Run:
    config = {"name": "small", "evaluation": {"min_return": 50, "episodes": 3}}
    return Run.create(parse_config(config), run_id="r", home=tmp_path)


@pytest.fixture
def registry() -> Any:
    return FakeRegistry()


def save(folder: Path) -> None:
    (folder / "policy").mkdir()
    (folder / "policy" / "policy.safetensors").write_bytes(b"weights")


def write(run: Run, step: int) -> Checkpoint:
    """A checkpoint here and in the store."""
    made = checkpoints.write(run, Resolved(step=step, version=step), save, epoch=1, digest="d")
    store = run.open_store()
    checkpoints.upload(made, store, epoch=1)
    store.close()
    return made


def register(run: Run, registry: Any, checkpoint: Checkpoint) -> ModelVersion:
    tags = {"run_id": run.run_id, "checkpoint_digest": checkpoint.digest}
    return stages.register_checkpoint(run, registry, checkpoint, mlflow_id="mlflow-1", tags=tags)


def scores(*values: float) -> Scores:
    return Scores(name="return", seeds=range(len(values)), values=np.array(values))


def finish(run: Run, **returns: float) -> None:
    log = run.open_log()
    for name, value in returns.items():
        step = int(name[1:])
        done = Outcome(
            epoch=1, step=step, version_in=step, version_out=step, digest="", metrics={"episode_return_mean": value}
        )
        log.append("plan", 0, [row_entry(done)])
    log.close()


def test_the_newest_checkpoint_is_verified_whatever_the_older_ones_are(run: Run) -> None:
    (write(run, 1).folder / "state.json").write_text("{}")
    newest = write(run, 2)
    assert stages.verify_newest(run) == newest


def test_without_a_checkpoint_there_is_nothing_to_verify(run: Run) -> None:
    with pytest.raises(CheckpointError, match="run r has no checkpoint in"):
        stages.verify_newest(run)


def test_every_fault_of_the_newest_checkpoint_is_named_and_no_older_one_taken_for_it(run: Run) -> None:
    write(run, 1)
    newest = write(run, 2)
    (newest.folder / "policy" / "policy.safetensors").write_bytes(b"weightz")
    (newest.folder / "state.json").unlink()
    with pytest.raises(CheckpointError, match="step 2 is damaged") as error:
        stages.verify_newest(run)
    assert "policy.safetensors: MD5 is" in str(error.value)
    assert "state.json: missing" in str(error.value)


def test_every_byte_is_read_again_each_time(run: Run) -> None:
    newest = write(run, 1)
    stages.verify_newest(run)
    file = newest.folder / "policy" / "policy.safetensors"
    before = file.stat()
    file.write_bytes(b"weightz")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CheckpointError, match=r"policy\.safetensors: MD5 is"):
        stages.verify_newest(run)


def test_the_stored_copy_is_verified_too(run: Run) -> None:
    newest = write(run, 1)
    store = run.open_store()
    store.put("checkpoints/step-000000001/state.json", b"other")
    with pytest.raises(CheckpointError, match=r"step 1 is damaged: .*state\.json: MD5 is"):
        stages.verify_newest(run)
    store.put("checkpoints/step-000000001/state.json", newest.folder / "state.json")
    store.delete("checkpoints/step-000000001/policy/policy.safetensors")
    store.close()
    with pytest.raises(CheckpointError, match=r"policy\.safetensors: missing"):
        stages.verify_newest(run)


def test_a_registered_checkpoint_is_pinned_and_its_manifest_kept(run: Run, registry: Any) -> None:
    checkpoint = write(run, 3)
    version = register(run, registry, checkpoint)
    assert (version.name, version.version) == ("small", 1)
    assert registry.artifacts == ["checkpoint/MANIFEST.md5"]
    assert registry.loaders == {"offbeat.workloads.serving"}
    store = run.open_store()
    assert checkpoints.pinned(store) == {3}
    store.close()


def test_one_checkpoint_is_registered_once_and_another_anew(run: Run, registry: Any) -> None:
    first, second = write(run, 1), write(run, 2)
    assert [register(run, registry, found).version for found in (first, first, second, first)] == [1, 1, 2, 1]
    assert len(registry.registered) == 2


def test_without_trajectories_no_quality_check_is_made(run: Run) -> None:
    assert stages.check_trajectories(run) is None


@pytest.mark.parametrize(
    ("values", "failed", "promote"),
    [((60, 50, 40), (), True), ((60, 50, 39), (), False), ((60, 50, 40), ("a column has NaN",), False)],
    ids=["at the threshold", "below it", "a failed check"],
)
def test_the_first_challenger_is_held_to_the_threshold_and_the_checks(
    run: Run, registry: Any, values: tuple[float, ...], failed: tuple[str, ...], promote: bool
) -> None:
    verdict = stages.judge(run, registry, scores(*values), failed_checks=failed)
    assert (verdict.promote, verdict.difference) == (promote, None)


def test_the_learning_curve_is_kept_here_and_with_mlflow(run: Run, registry: Any) -> None:
    finish(run, s1=10.0, s2=20.0, s3=float("nan"))
    assert stages.keep_learning_curve(run, registry, mlflow_id="mlflow-1") == "mlflow-1/learning_curve.png"
    assert stages.curve_file(run).read_bytes().startswith(b"\x89PNG")


def test_outcomes_come_in_the_order_of_their_steps(run: Run) -> None:
    assert stages.all_outcomes(run) == []
    finish(run, s2=2.0, s1=1.0)
    assert [outcome.step for outcome in stages.all_outcomes(run)] == [1, 2]


@pytest.mark.parametrize("samples", [(), ({"prompt": "1+1=", "completion": "2"},)])
def test_an_evaluation_is_kept_by_step_with_its_examples(
    run: Run, registry: Any, samples: tuple[dict[str, str], ...]
) -> None:
    (run.folder / "baseline.json").write_text('{"accuracy_mean": 0.25}')
    scores = Scores(name="accuracy", seeds=[1, 2], values=np.array([1.0, 0.0]), samples=samples)
    stages.keep_evaluation(run, registry, Checkpoint(step=40, folder=Path("c")), scores, mlflow_id="mlflow-1")
    assert registry.metrics[0] == {"evaluation/accuracy_mean": 0.25}
    assert registry.metrics[40]["evaluation/accuracy_mean"] == 0.5
    assert registry.metrics[40]["evaluation/episodes"] == 2
    expected = ["samples/step-000000040.json: [{'prompt': '1+1=', 'completion': '2'}]"] if samples else []
    assert registry.artifacts == expected


def test_fewer_prompts_than_episodes_are_no_fault(tmp_path: Path) -> None:
    config = parse_config({"workload": {"kind": "language"}, "evaluation": {"episodes": 20}})
    run = Run.create(config, run_id="l", home=tmp_path)
    scores = Scores(name="accuracy", seeds=range(19), values=np.linspace(0.0, 1.0, 19))
    assert stages.check_scores(run, scores).failed == ()


def test_fewer_episodes_than_asked_for_are_one(run: Run) -> None:
    scores = Scores(name="return", seeds=range(2), values=np.ones(2))
    assert any("row count" in sentence for sentence in stages.check_scores(run, scores).failed)
