"""Tensors in files, on a disk that has no room for them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from offbeat.errors import CheckpointError
from offbeat.ledger import Resolved
from offbeat.runs import Run
from offbeat.trainer import checkpoint
from offbeat.workloads.tensor_files import write_tensors
from tests.limits import files_of_at_most
from tests.sides import small_config

LARGEST = 20_000


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_tensors({"a": torch.arange(3.0)}, tmp_path / "t.safetensors")
    assert torch.equal(load_file(tmp_path / "t.safetensors")["a"], torch.arange(3.0))


def test_a_disk_that_refuses_costs_the_checkpoint_and_leaves_nothing(tmp_path: Path) -> None:
    run = Run.create(small_config(), run_id="r", home=tmp_path)

    def save(folder: Path) -> None:
        write_tensors({"large": torch.zeros(100_000)}, folder / "optimizer.safetensors")

    refused = pytest.raises(
        CheckpointError, match=r"cannot write checkpoint .*optimizer\.safetensors: .*File too large"
    )
    with files_of_at_most(LARGEST), refused:
        checkpoint.write(run, Resolved(step=3), save, epoch=1, digest="")
    assert list(run.checkpoints.iterdir()) == []
