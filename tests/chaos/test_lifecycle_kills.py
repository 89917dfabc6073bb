"""The whole command under kill -9: parent, trainer and generators at random moments, then `offbeat resume`."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from offbeat.errors import ConfigError
from offbeat.ledger import read_account
from offbeat.runs import Run, read_status
from offbeat.trainer.replay import replay
from tests.sides import DEADLINE_S

KILLS = 20
CONFIG = Path(__file__).parents[2] / "deployments" / "cartpole.yaml"
PARENT = "parent"
# Long enough to be killed often, and never given up.
CHANGES = ("training.max_steps=400", "launcher.max_restarts=1000", "launcher.restart_pause_s=0")


class Command:
    """`offbeat run`, continued by `offbeat resume` each time its parent process is killed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._output = home / "output.json"
        changes = [argument for change in CHANGES for argument in ("--set", change)]
        self._process = self._start("run", str(CONFIG), "--run-id", "killed", *changes)

    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self, role: str) -> None:
        if role == PARENT:
            children = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            self._process.wait()
            _, alive = psutil.wait_procs(children, timeout=DEADLINE_S)
            assert not alive, f"these outlived their parent: {alive}"
            self._process = self._start("resume", "killed")
        elif (pid := self.pids().get(role)) is not None:
            os.kill(pid, signal.SIGKILL)

    def pids(self) -> dict[str, int]:
        """Living children by role; a pid of the past may be a stranger's now, so only own descendants count."""
        try:
            own = {child.pid for child in psutil.Process(self._process.pid).children(recursive=True)}
            store = Run.open("killed", home=self.home).open_store()
        except (psutil.NoSuchProcess, ConfigError):
            return {}
        found = {role: int(status["pid"]) for role, status in read_status(store).items()}
        return {role: pid for role, pid in found.items() if pid in own}

    def steps(self) -> int:
        try:
            return read_account(Run.open("killed", home=self.home)).steps
        except ConfigError:
            return 0

    def result(self) -> dict[str, object]:
        assert self._process.wait(1200) == 0, self._output.read_text()
        return dict(json.loads(self._output.read_text().splitlines()[-1]))

    def close(self) -> None:
        if not self.ended():
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(DEADLINE_S)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "offbeat", *arguments, "--json", "--home", str(self.home)]
        with self._output.open("wb") as output, (self.home / "errors.txt").open("ab") as errors:
            return subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)


def wait_for_progress(command: Command) -> None:
    """Until one more step is accounted for, or the run has left its training behind."""
    before, deadline = command.steps(), time.monotonic() + 4 * DEADLINE_S
    while command.steps() <= before and not command.ended() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_twenty_random_kills_of_anyone(tmp_path):
    chance = random.Random(11)
    command = Command(tmp_path)
    try:
        killed = []
        while len(killed) < KILLS and not command.ended():
            wait_for_progress(command)
            time.sleep(chance.uniform(0.0, 1.0))  # the random moment itself
            role = chance.choice([PARENT, *command.pids()])
            command.kill(role)
            killed.append(role)
        report = command.result()
    finally:
        command.close()
    run = Run.open("killed", home=tmp_path)
    account = read_account(run)
    assert (report["status"], account.difference, account.steps) == ("promoted", 0, run.config.training.max_steps)
    assert report["evaluation"]["return_mean"] >= 475
    assert replay(run).divergences == ()
    assert len(killed) >= KILLS // 2, "the run was over too soon to be killed often"
