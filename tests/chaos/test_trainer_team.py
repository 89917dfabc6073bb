"""A trainer of several processes through a whole run: started by torchrun, killed, resumed, replayed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from offbeat.ledger import read_account
from offbeat.lifecycle.provisioning import prepare_run
from offbeat.runs import Run
from offbeat.trainer.replay import replay
from tests.sides import Sides, language_config

pytestmark = pytest.mark.chaos
pytest.importorskip("trl", reason="the extra `language` is not installed")

NUM_WORKERS = 2


@pytest.fixture
def run(tmp_path: Path) -> Run:
    config = language_config()
    strategy = config.strategy.model_copy(update={"num_workers": NUM_WORKERS})
    run = Run.create(config.model_copy(update={"strategy": strategy}), run_id="sums", home=tmp_path)
    prepare_run(run)
    return run


def test_a_trainer_that_torchrun_started_does_what_one_that_starts_its_own_does(run: Run) -> None:
    """Two processes by torchrun; the replay starts its own second one, and finds the same bits."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(NUM_WORKERS)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
        *("-m", "offbeat", "trainer", run.run_id, "--home", str(run.home)),
    ]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    with Sides(run) as sides, subprocess.Popen(command, env=environment) as launcher:
        sides.start("generator-0")
        try:
            assert launcher.wait(timeout=240) == 0
        finally:
            launcher.kill()
    account = read_account(run)
    assert (account.difference, account.steps) == (0, run.config.training.max_steps)
    assert replay(run).divergences == ()


@pytest.mark.parametrize("which", ["first", "follower"])
def test_a_killed_process_of_the_team_costs_nothing(run: Run, which: str) -> None:
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_for_steps(run, at_least=5)
        trainer = psutil.Process(sides.pid("trainer"))
        (follower,) = trainer.children()
        (trainer if which == "first" else follower).send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs([trainer, follower], timeout=60)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
        sides.start("trainer")
        sides.wait_until_done(run)
    account = read_account(run)
    assert (account.difference, account.steps) == (0, run.config.training.max_steps)
    assert replay(run).divergences == ()
