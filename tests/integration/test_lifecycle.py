"""The real lifecycle on CartPole, made short: everything but the learning is as in `make run`."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import flow_run, states_of_children
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from flows.lifecycle import run_lifecycle
from offbeat.cli.report import REPORT_KEYS
from offbeat.errors import ConfigError, GateRejected
from offbeat.ledger import read_account
from offbeat.lifecycle.relay import open_registry
from offbeat.runs import Run

pytestmark = pytest.mark.timeout(900)

CONFIG = str(Path(__file__).parents[2] / "deployments" / "cartpole.yaml")
SHORT: dict[str, Any] = {
    "training.max_steps": 4,
    "training.batch_size": 64,
    "training.algorithm.lr_schedule": "constant",  # A schedule would tie a resumed run to its number of steps.
    "strategy.checkpoint_freq": 2,
    "evaluation.episodes": 5,
    "evaluation.max_episode_steps": 50,
    "evaluation.min_return": 1,
    "observation.interval_s": 0.5,
    # A busy machine must not decide this test.
    "launcher.progress_deadline_s": 600,
    "launcher.stop_grace_s": 60,
}


def test_a_run_goes_from_nothing_to_a_champion_and_on_to_a_rejected_challenger(prefect_url: str) -> None:
    report = run_lifecycle(CONFIG, SHORT, run_id="whole")
    run = Run.open("whole")
    check_report(report, run)
    check_prefect(run)
    check_registry(run)
    check_files(run, report)
    # The same run once more, with two steps to go and a threshold that nothing reaches.
    harder = {"training.max_steps": 6, "evaluation.min_return": 1e6, "evaluation.require_promotion": True}
    with pytest.raises(GateRejected, match=r"cartpole version 2: .*is below the threshold"):
        run_lifecycle(CONFIG, harder, run_id="whole", resume=True)
    check_rejected(Run.open("whole"))


def check_report(report: dict[str, Any], run: Run) -> None:
    assert set(report) == set(REPORT_KEYS)
    assert (report["status"], report["steps"], report["policy_version"]) == ("promoted", 4, 4)
    assert report["model"] == {"name": "cartpole", "version": 1, "alias": "champion"}
    assert report["checkpoint"]["md5_ok"] is True
    assert report["evaluation"]["episodes"] == 5
    assert report["samples_per_second"] > 0
    account = read_account(run)
    assert account.difference == 0
    assert account.trained == 4 * 64 == report["trained"]


def check_prefect(run: Run) -> None:
    found = flow_run(run.run_id)
    assert found is not None
    assert found.state is not None
    assert found.state.is_completed()
    assert states_of_children(found.id) == {
        f"whole-{role}": ["Completed"] for role in ("trainer", "generator-0", "generator-1")
    }
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[found.id]))
    with get_client(sync_client=True) as client:
        artifacts = {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=of_run)}
    assert {"whole-progress", "whole-evaluation", "whole-learning-curve", "whole-verdict"} <= set(artifacts)
    assert artifacts["whole-progress"].data == 100.0
    assert "promoted" in str(artifacts["whole-verdict"].data)


def check_registry(run: Run) -> None:
    registry = open_registry(run)
    champion = registry.champion("cartpole")
    assert champion is not None
    assert champion.version == 1
    found = flow_run(run.run_id)
    assert found is not None
    expected = {"run_id": "whole", "step": "4", "ledger_range": "1..4", "flow_run_id": str(found.id)}
    assert {key: champion.tags[key] for key in expected} == expected
    assert {"git_revision", "config_digest", "checkpoint_digest", "environment"} <= set(champion.tags)


def check_files(run: Run, report: dict[str, Any]) -> None:
    assert json.loads((run.folder / "report.json").read_text()) == report
    assert (run.folder / "learning_curve.png").stat().st_size > 1000
    assert (run.folder / "quality" / "trajectories" / "index.html").is_file()
    assert (run.folder / "quality" / "evaluation" / "index.html").is_file()
    checked = subprocess.run(
        ["md5sum", "-c", "--quiet", "MANIFEST.md5"], cwd=run.checkpoints / "step-000000004", check=False
    )
    assert checked.returncode == 0


def check_rejected(run: Run) -> None:
    found = flow_run(run.run_id)
    assert found is not None
    assert found.state is not None
    assert found.state.is_failed()
    assert "GateRejected" in str(found.state.message)
    registry = open_registry(run)
    champion = registry.champion("cartpole")
    assert champion is not None
    assert (champion.version, len(registry.versions("cartpole"))) == (1, 2)
    account = read_account(run)
    assert (account.steps, account.difference, account.trained) == (6, 0, 6 * 64)
    report = run.read_report()
    assert report is not None
    assert (report["status"], report["steps"]) == ("rejected", 6)


def test_a_wrong_configuration_fails_before_anything_starts(prefect_url: str) -> None:
    with pytest.raises(ConfigError, match="did you mean batch_size"):
        run_lifecycle(CONFIG, ["training.batchsize=3"], run_id="wrong")
    with pytest.raises(ConfigError, match="no run 'nowhere'"):
        run_lifecycle(CONFIG, run_id="nowhere", resume=True)
