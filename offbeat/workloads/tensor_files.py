"""Tensors in files that hold nothing else: safetensors, with the disk's refusal as the error that it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def write_tensors(tensors: "Mapping[str, Tensor]", path: Path) -> None:
    """Write tensors by name; raises OSError when the disk refuses."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        raise OSError(f"{path.name}: {error}") from error
