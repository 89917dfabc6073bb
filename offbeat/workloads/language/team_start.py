"""How a trainer's processes find each other: started here by the first of them, or all by torchrun.

    strategy.num_workers: 4, plain command ──> process 0 starts three followers, which meet it through a file
    torchrun --nproc-per-node 4 ...        ──> the environment says who is who and where process 0 is

Both ways end in one process group.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from offbeat.config import RunConfig
from offbeat.errors import ConfigError, NotReady, WorkloadError
from offbeat.workloads.language.follower_process import PARENT
from offbeat.workloads.language.team import PATIENCE, DistributedTeam, Team
from offbeat.workloads.launched import LAUNCHER, launched_rank

RANK, SIZE, MEETING = (f"OFFBEAT_TEAM_{name}" for name in ("RANK", "SIZE", "MEETING"))
END_TIMEOUT_S = 10.0
POLL_S = 0.02


def open_team(config: RunConfig, base: Path, *, meanwhile: Callable[[], object] = lambda: None) -> Team:
    """The trainer's team, seen from its first process.

    meanwhile: work (slow imports) to do while followers that are started here do theirs. Raises ConfigError when
    torchrun started another number of processes than `strategy.num_workers`.
    """
    if launched_rank() is not None:
        return join_launched(config)
    if config.strategy.num_workers == 1:
        return Team()
    return _start(config, base, meanwhile)


def join_launched(config: RunConfig) -> Team:
    """The team that torchrun started, seen from any of its processes."""
    found, expected = int(os.environ["WORLD_SIZE"]), config.strategy.num_workers
    if found != expected:
        raise ConfigError(
            f"the launcher started {found} trainer processes, but strategy.num_workers is {expected}; make them agree"
        )
    if found == 1:
        _forget_launcher()
        return Team()
    if config.training.device == "cuda":  # Each process sees its own GPU alone, as followers that are started here do.
        local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible_devices()[local]
    dist.init_process_group(_backends(config), init_method="env://", timeout=PATIENCE)
    _forget_launcher()
    return DistributedTeam()


def join_started(config: RunConfig) -> Team:
    """The team that process 0 started, seen from one of its followers."""
    rank, size = int(os.environ[RANK]), int(os.environ[SIZE])
    return _met(config, os.environ[MEETING], rank=rank, size=size)


def _start(config: RunConfig, base: Path, meanwhile: Callable[[], object]) -> Team:
    size = config.strategy.num_workers
    if config.training.device == "cuda" and torch.cuda.device_count() < size:
        raise NotReady(f"strategy.num_workers: got {size}, but there are {torch.cuda.device_count()} GPUs here")
    folder = _meeting_folder(base.parent)
    followers = [_follower(config, base, folder / "meeting", rank=rank, size=size) for rank in range(1, size)]

    def ended() -> None:
        _end(followers)
        shutil.rmtree(folder, ignore_errors=True)

    try:
        meanwhile()
        return _met(config, str(folder / "meeting"), rank=0, size=size, followers=followers, ended=ended)
    except BaseException:
        for follower in followers:
            follower.kill()
        ended()
        raise


def _meeting_folder(run: Path) -> Path:
    """A folder of this process's own in the run's; what processes left that are gone is removed.

    In a container that was started again the one that is gone had this process's own number.
    """
    for left in run.glob("team-*"):
        pid = int(left.name.removeprefix("team-"))
        if pid == os.getpid() or not _lives(pid):
            shutil.rmtree(left, ignore_errors=True)
    folder = run / f"team-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise NotReady(f"cannot write {folder}: {error.strerror}") from error
    return folder


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _follower(config: RunConfig, base: Path, meeting: Path, *, rank: int, size: int) -> "subprocess.Popen[bytes]":
    own = {RANK: str(rank), SIZE: str(size), MEETING: str(meeting), PARENT: str(os.getpid())}
    if config.training.device == "cuda":
        own["CUDA_VISIBLE_DEVICES"] = _visible_devices()[rank]
    process = subprocess.Popen(
        [sys.executable, "-m", "offbeat.workloads.language.follower_process"],
        stdin=subprocess.PIPE,
        env=os.environ | own | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if process.stdin is not None:
        document = {"config": config.model_dump(mode="json"), "base": str(base)}
        process.stdin.write(json.dumps(document).encode())
        process.stdin.close()
    return process


def _met(
    config: RunConfig,
    meeting: str,
    *,
    rank: int,
    size: int,
    followers: Sequence["subprocess.Popen[bytes]"] = (),
    ended: Callable[[], None] = lambda: None,
) -> Team:
    # One machine: nothing listens on an address that others can reach.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = dist.FileStore(meeting, size)  # type: ignore[attr-defined]
    store.set(f"here-{rank}", "yes")
    for other, follower in enumerate(followers, start=1):
        while not store.check([f"here-{other}"]):
            if (code := follower.poll()) is not None:
                raise WorkloadError(
                    f"trainer process {other} ended with {code} before it had begun; its output says why"
                )
            time.sleep(POLL_S)
    dist.init_process_group(_backends(config), store=store, rank=rank, world_size=size, timeout=PATIENCE)
    return DistributedTeam(ended=ended)


def _end(followers: Sequence["subprocess.Popen[bytes]"]) -> None:
    deadline = time.monotonic() + END_TIMEOUT_S
    for follower in followers:
        try:
            follower.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            follower.kill()
            follower.wait()


def _backends(config: RunConfig) -> str:
    return "cpu:gloo,cuda:nccl" if config.training.device == "cuda" else "gloo"


def _visible_devices() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(index) for index in range(torch.cuda.device_count())]


def _forget_launcher() -> None:
    for name in LAUNCHER:
        os.environ.pop(name, None)
