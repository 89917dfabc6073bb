"""From a person's wish to a run."""

from pathlib import Path

import pytest

from offbeat.errors import ConfigError, ResumeRefused, RunLocked
from offbeat.lifecycle.provisioning import find_config, provision_run


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ntraining: {max_steps: 5}\n")
    return str(path)


def test_a_new_run_has_the_overrides(config: str) -> None:
    run = provision_run(config, ["training.max_steps=7"], run_id="r1")
    assert (run.run_id, run.config.training.max_steps) == ("r1", 7)


def test_a_resumed_run_keeps_its_frozen_configuration(config: str) -> None:
    provision_run(config, {"training.max_steps": 7}, run_id="r1")
    assert provision_run(config, {}, run_id="r1", resume=True).config.training.max_steps == 7
    assert provision_run(config, {"training.max_steps": 9}, run_id="r1", resume=True).config.training.max_steps == 9


def test_a_resumed_run_refuses_what_cannot_change(config: str) -> None:
    provision_run(config, {}, run_id="r1")
    with pytest.raises(ResumeRefused, match=r"seed: was 0, now 1"):
        provision_run(config, {"seed": 1}, run_id="r1", resume=True)


def test_a_run_at_work_is_not_changed(config: str) -> None:
    run = provision_run(config, {}, run_id="r1")
    with run.hold("lifecycle"), pytest.raises(RunLocked):
        provision_run(config, {"training.max_steps": 9}, run_id="r1", resume=True)


def test_resume_needs_to_know_which(config: str) -> None:
    with pytest.raises(ConfigError, match="run_id"):
        provision_run(config, {}, resume=True)


def test_a_bare_name_is_a_file_in_deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deployments").mkdir()
    Path("deployments/small.yaml").touch()
    assert find_config("small") == Path("deployments/small.yaml")
    assert find_config("deployments/small.yaml") == Path("deployments/small.yaml")
    assert find_config("none") == Path("none")
