"""Two trainer processes, real ones: as good as one, and neither outlives nor waits for the other's death."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from offbeat.config import RunConfig
from offbeat.errors import ConfigError, WorkloadError
from offbeat.workloads.language import LanguageWorkload
from offbeat.workloads.language.learner import LanguageLearner
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.team_start import _meeting_folder, join_launched
from tests.unit.workloads.language.small_models import make_base, recorded_batch, run_config

ALGORITHMS: dict[str, dict[str, Any]] = {
    "decoupled": {"correction": "decoupled", "kl_coef": 0.1, "minibatches": 3, "epochs": 2, "micro_batch_tokens": 32},
    "sequence": {"loss": "grpo", "ratio": "sequence"},
    # Cut among both; a pass holds a row or two, so that one process has passes left when the other has none.
    "sharded": {"correction": "truncated_token", "kl_coef": 0.1, "minibatches": 3, "micro_batch_tokens": 16},
    "sharded lora": {"loss": "grpo"},
}
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("run") / "base")


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    before = set(_followers())
    yield
    assert set(_followers()) <= before


def _config(num_workers: int, algorithm: dict[str, Any] | None = None, *, kind: str = "") -> RunConfig:
    model = {"lora": {"rank": 4}} if "lora" in kind else {}
    config = run_config(workload={"model": model}, algorithm={"logprob_check_steps": 1, **(algorithm or {})})
    sharding = "full" if "sharded" in kind and num_workers > 1 else "none"
    strategy = config.strategy.model_copy(update={"num_workers": num_workers, "sharding": sharding})
    return config.model_copy(update={"strategy": strategy})


def _learner(
    base: Path, num_workers: int, algorithm: dict[str, Any] | None = None, *, kind: str = ""
) -> LanguageLearner:
    learner = LanguageWorkload(_config(num_workers, algorithm, kind=kind), base=base).make_learner()
    assert isinstance(learner, LanguageLearner)
    return learner


def _followers() -> list[psutil.Process]:
    """Of this process, which may have other children."""
    found = psutil.process_iter(["cmdline", "ppid"])
    module = "offbeat.workloads.language.follower_process"
    return [one for one in found if one.info["ppid"] == os.getpid() and module in (one.info["cmdline"] or ())]


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.05)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_processes_learn_what_one_does(base: Path, tmp_path: Path, name: str) -> None:
    """One process trains two steps. A team takes over its first checkpoint, moments and all, and makes the second."""
    batch, algorithm = recorded_batch(base, shift=0.2), ALGORITHMS[name]
    alone = _learner(base, 1, algorithm, kind=name)
    alone.step(batch, seed=1)
    alone.save(tmp_path / "alone")
    expected = alone.step(batch, seed=2)
    with closing(_learner(base, 2, algorithm, kind=name)) as team:
        team.load(tmp_path / "alone")
        measured = team.step(batch, seed=2)
        team.save(tmp_path / "team")  # Refused unless both processes hold the same.
        weights, digest = team.weights(), team.digest()
        team.load(tmp_path / "team")
        assert team.digest() == digest
    assert measured == pytest.approx(expected, rel=1e-4, abs=1e-6)
    for parameter, tensor in weights.items():
        torch.testing.assert_close(tensor, alone.weights()[parameter], rtol=1e-4, atol=1e-6)
    alone.load(tmp_path / "team")
    assert all(torch.equal(tensor, weights[parameter]) for parameter, tensor in alone.weights().items())
    opened = LanguageWorkload(_config(1), base=base).load_policy(tmp_path / "team" / "policy")
    assert isinstance(opened, LanguagePolicy)


def test_a_team_that_differs_saves_nothing_and_one_that_lost_a_process_learns_nothing(
    base: Path, tmp_path: Path
) -> None:
    with closing(_learner(base, 2)) as team:
        with torch.no_grad():
            next(iter(team._policy.trained.values())).add_(1.0)
        with pytest.raises(WorkloadError, match=r"trainer processes \[1\] hold other parameters"):
            team.save(tmp_path / "checkpoint")
        assert not (tmp_path / "checkpoint").exists()
        (follower,) = _followers()
        follower.kill()
        with pytest.raises(WorkloadError, match=r"a process of the trainer's team is gone"):
            team.step(recorded_batch(base, shift=0.0), seed=1)


FIRST = """
import sys, time
from pathlib import Path
from offbeat.config import RunConfig
from offbeat.workloads.language import LanguageWorkload
if __name__ == "__main__":
    config = RunConfig.model_validate_json(sys.argv[1])
    learner = LanguageWorkload(config, base=Path(sys.argv[2])).make_learner()
    learner.save(Path(sys.argv[3]))
    print("ready", flush=True)
    time.sleep(600)
"""


def test_a_follower_ends_with_the_first_process(base: Path, tmp_path: Path) -> None:
    """Where the kernel sees to it, even one that is stopped at that moment."""
    arguments = [_config(2).model_dump_json(), str(base), str(tmp_path / "saved")]
    first = subprocess.Popen([sys.executable, "-c", FIRST, *arguments], stdout=subprocess.PIPE)
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"ready\n"
        (follower,) = psutil.Process(first.pid).children()
        if sys.platform == "linux":
            follower.suspend()
        os.kill(first.pid, signal.SIGKILL)
        _wait(lambda: not follower.is_running() or follower.status() == psutil.STATUS_ZOMBIE)
    assert [path.name for path in base.parent.glob("team-*")] == [f"team-{first.pid}"]


def test_what_teams_that_are_gone_left_is_removed_and_that_of_living_ones_is_not(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getpid(), os.getppid()):  # The same number again, too, as in a restarted container.
        (tmp_path / f"team-{pid}").mkdir()
        (tmp_path / f"team-{pid}" / "meeting").write_text("of another life")
    own = _meeting_folder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {own.name, f"team-{os.getppid()}"}
    assert list(own.iterdir()) == []


def test_a_follower_whose_parent_is_gone_already_ends_at_once() -> None:
    code = "import time; from offbeat.workloads.language.follower_process import end_with_parent; {}; time.sleep(600)"
    orphan = subprocess.run([sys.executable, "-c", code.format("end_with_parent(0)")], timeout=DEADLINE_S, check=False)
    assert orphan.returncode == 1


def test_another_number_of_launched_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"launcher started 3 trainer processes, but strategy.num_workers is 2"):
        join_launched(_config(2))
