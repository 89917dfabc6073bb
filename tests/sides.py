"""Generators and trainer as real processes, for tests that kill them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import httpx

from offbeat.config import RunConfig, parse_config
from offbeat.ledger import read_account
from offbeat.runs import Run

DEADLINE_S = 120.0

GENERATOR = "from offbeat.generator import run_generator as go; go(Run.open({folder!r}), {index}, stop=stop)"
TRAINER = "from offbeat.trainer import run_trainer as go; go(Run.open({folder!r}), stop=stop)"
PRELUDE = (
    "import logging, signal, threading; from offbeat.runs import Run; logging.basicConfig(level=logging.INFO);"
    "stop = threading.Event(); signal.signal(signal.SIGTERM, lambda *_: stop.set()); "
)


def small_config(**training: object) -> RunConfig:
    """A CartPole run that takes hundreds of steps a minute on a busy machine."""
    return parse_config(
        {
            "name": "small",
            "workload": {"num_envs": 8, "unroll_length": 8, "policy": {"hidden_sizes": [8]}},
            "training": {
                "batch_size": 32,
                "max_steps": 60,
                "max_staleness": 2,
                "algorithm": {"epochs": 1, "minibatches": 2},
                **training,
            },
            "strategy": {"checkpoint_freq": 7},
            "observation": {"interval_s": 0.2},
        }
    )


def language_config(**training: object) -> RunConfig:
    """Sums of one-digit numbers, for a model of a few thousand parameters."""
    return parse_config(
        {
            "name": "sums",
            "workload": {
                "kind": "language",
                "model": {
                    "made": {
                        "hidden_size": 32,
                        "num_layers": 1,
                        "num_heads": 2,
                        "intermediate_size": 64,
                        "max_length": 16,
                    },
                    "warm_up": {"steps": 30, "batch_size": 32, "learning_rate": 0.01},
                },
                "data": {
                    "train": "offbeat.workloads.language.arithmetic:problems",
                    "arguments": {"largest": 9},
                    "validation_share": 0.2,
                },
                "sampling": {"max_new_tokens": 3},
                "rewards": {"functions": [{"name": "accuracy"}]},
                "group_size": 4,
                "num_groups": 4,
                "in_flight_updates": True,
            },
            "training": {
                "batch_size": 32,
                "max_steps": 12,
                "max_staleness": 2,
                "algorithm": {"learning_rate": 0.001, "correction": "truncated_token"},
                **training,
            },
            "generator": {"num_generators": 1},
            "strategy": {"checkpoint_freq": 4},
            "evaluation": {"episodes": 16, "samples": 2},
            "observation": {"interval_s": 0.2},
        }
    )


class Sides:
    """The processes of one run, by role. Leaving the block ends whatever still lives."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._former: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Sides":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in [*self._former, *self._processes.values()]:
            if process.poll() is None:
                process.kill()
            process.wait(10)

    def start_all(self) -> None:
        for role in ["trainer", *(f"generator-{i}" for i in range(self._run.config.generator.num_generators))]:
            self.start(role)

    def start(self, role: str) -> None:
        folder = str(self._run.folder)
        code = (
            TRAINER.format(folder=folder)
            if role == "trainer"
            else GENERATOR.format(folder=folder, index=int(role[10:]))
        )
        output = (self._run.folder / "output" / f"{role}.log").open("ab")
        with output:
            self._processes[role] = subprocess.Popen(
                [sys.executable, "-c", PRELUDE + code],
                stdout=output,
                stderr=output,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def pid(self, role: str) -> int:
        return self._processes[role].pid

    def kill(self, role: str, number: int = signal.SIGKILL) -> int:
        self._processes[role].send_signal(number)
        return self._processes[role].wait(30)

    def output(self, role: str) -> str:
        return Path(self._run.folder / "output" / f"{role}.log").read_text()

    def disown(self, role: str) -> subprocess.Popen[bytes]:
        """Let another process take this role; the former one is still ended with the block."""
        process = self._processes.pop(role)
        self._former.append(process)
        return process

    def wait(self, role: str) -> int:
        return self._processes[role].wait(DEADLINE_S)

    def health(self, url: str) -> tuple[int, str]:
        try:
            answer = httpx.get(f"{url}/healthz", timeout=10)
        except httpx.HTTPError as error:
            return 0, str(error)
        return answer.status_code, answer.text

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"in vain: {what}"
            time.sleep(0.02)

    def wait_for_steps(self, run: Run, *, at_least: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while read_account(run).steps < min(at_least, run.config.training.max_steps):
            self._check_alive()
            assert time.monotonic() < deadline, f"no progress beyond {read_account(run)}"
            time.sleep(0.02)

    def wait_until_done(self, run: Run) -> None:
        for role, process in self._processes.items():
            assert process.wait(DEADLINE_S) == 0, f"{role}: {self.output(role)[-3000:]}"

    def _check_alive(self) -> None:
        for role, process in self._processes.items():
            assert process.poll() in (None, 0), f"{role} ended: {self.output(role)[-3000:]}"
