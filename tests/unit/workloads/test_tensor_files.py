"""Tensors in files, on a disk that has no room for them."""

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from offbeat.errors import CheckpointError
from offbeat.ledger import Resolved
from offbeat.runs import Run
from offbeat.trainer import checkpoint
from offbeat.workloads.tensor_files import write_tensors
from tests.sides import small_config

LARGEST = 20_000


@pytest.fixture
def _small_files() -> Iterator[None]:
    """No file of this process may grow above 20 kB, as if the disk were full."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_tensors({"a": torch.arange(3.0)}, tmp_path / "t.safetensors")
    assert torch.equal(load_file(tmp_path / "t.safetensors")["a"], torch.arange(3.0))


@pytest.mark.usefixtures("_small_files")
def test_a_disk_that_refuses_costs_the_checkpoint_and_leaves_nothing(tmp_path: Path) -> None:
    run = Run.create(small_config(), run_id="r", home=tmp_path)

    def save(folder: Path) -> None:
        write_tensors({"large": torch.zeros(100_000)}, folder / "optimizer.safetensors")

    with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*optimizer\.safetensors: .*File too large"):
        checkpoint.write(run, Resolved(step=3), save, epoch=1, digest="")
    assert list(run.checkpoints.iterdir()) == []
