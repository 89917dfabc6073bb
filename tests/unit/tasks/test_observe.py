"""Keys and words of artifacts."""

import re

import pytest

from offbeat.ledger import Outcome
from tasks.observe import ProgressArtifact, artifact_key


@pytest.mark.parametrize("run_id", ["cartpole-20260101-000000-ab12", "My_Run.v2", "x" * 100, "A"])
def test_every_run_id_gives_a_key_that_prefect_takes(run_id: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", artifact_key(run_id, "progress"))


def test_the_progress_artifact_is_made_once_and_then_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, float, str]] = []

    def create(*, progress: float, key: str, description: str) -> str:
        calls.append(("create", progress, description))
        return "id"

    def update(*, artifact_id: str, progress: float, description: str) -> None:
        calls.append((f"update {artifact_id}", progress, description))

    monkeypatch.setattr("tasks.observe.create_progress_artifact", create)
    monkeypatch.setattr("tasks.observe.update_progress_artifact", update)
    artifact = ProgressArtifact("r", max_steps=40)
    artifact.show(None)
    artifact.show(
        Outcome(
            epoch=1,
            step=10,
            version_in=9,
            version_out=10,
            digest="",
            metrics={"episode_return_mean": 21.25, "training_loss": 0.5},
            finished_at_ns=1,
        )
    )
    assert calls == [
        ("create", 0.0, "step 0 of 40"),
        ("update id", 25.0, "step 10 of 40, return 21.2, loss 0.5"),
    ]
