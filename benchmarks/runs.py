"""Whole runs for benchmarks: trainer and generators as processes of their own, and what the ledger says afterwards."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from offbeat.config import RunConfig
from offbeat.ledger import Account, Outcome, read_account, read_outcomes
from offbeat.runs import Run
from offbeat.workloads import open_workload

ROOT = Path(__file__).parents[1]
LIMIT_S = 1800.0
# Nothing asks a hub or sends telemetry while it is measured.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "true"}


def create(config: RunConfig, home: Path, run_id: str, *, base: Path | None = None) -> Run:
    """A new run that starts from `base`, or from what its kind of work makes for it."""
    import torch

    torch.set_num_threads(1)  # What is made here is small, and a second thread waits for cores that others use.
    run = Run.create(config, run_id=run_id, home=home)
    if base is not None:
        shutil.copytree(base, run.base)
    else:
        open_workload(config, base=run.base).prepare()
    return run


def play(run: Run) -> Account:
    """Train it in processes of its own; raises SystemExit when one fails or a trajectory is not accounted for."""
    generators = range(run.config.generator.num_generators)
    sides = [["trainer"], *(["generator", "--index", str(index)] for index in generators)]
    home = ["--home", str(run.home)]
    wait_for(run, [start(run, "offbeat", side[0], run.run_id, *side[1:], *home, name="-".join(side)) for side in sides])
    account = read_account(run)
    if account.difference:
        raise SystemExit(f"{run.run_id}: {account.difference} trajectories are not accounted for")
    return account


def start(run: Run, module: str, *arguments: str, name: str) -> "subprocess.Popen[bytes]":
    """A Python process that finds the benchmarks too; what it says goes to output/<name>.log of the run."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with (run.folder / "output" / f"{name}.log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=output,
            stderr=output,
            env={**os.environ, **OFFLINE, "PYTHONPATH": path},
        )


def wait_for(run: Run, processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Wait until all have ended well; ends the others and raises SystemExit as soon as one has not."""
    deadline = time.monotonic() + LIMIT_S
    try:
        while any(process.poll() is None for process in processes):
            codes = [process.poll() for process in processes]
            if any(codes) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    if any(process.returncode for process in processes):
        codes = [process.returncode for process in processes]
        raise SystemExit(f"{run.run_id}: processes ended with {codes}; the end of what they said:\n{_said(run)}")


def outcomes_of(run: Run) -> list[Outcome]:
    """The run's steps, in order."""
    log = run.open_log()
    outcomes, _ = read_outcomes(log)
    log.close()
    return outcomes


def total(outcomes: Sequence[Outcome], name: str) -> float:
    """Sum of one metric."""
    return sum(outcome.metrics[name] for outcome in outcomes)


def _said(run: Run) -> str:
    return "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted((run.folder / "output").glob("*.log")))
