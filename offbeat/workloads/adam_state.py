"""A learner's optimiser as named tensors: what a checkpoint keeps, and what a digest covers."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from offbeat.errors import CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def adam_tensors(optimizer: Any, names: Sequence[str], parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """`moment/parameter name` of every parameter that Adam or AdamW has updated once."""
    return {
        f"{moment}/{name}": optimizer.state[parameter][moment]
        for name, parameter in zip(names, parameters, strict=True)
        if parameter in optimizer.state
        for moment in MOMENTS
    }


def check_adam_tensors(
    tensors: Mapping[str, Tensor], names: Sequence[str], parameters: Sequence[Tensor], folder: Path
) -> None:
    """Raise CheckpointError unless these are the moments of all these parameters, or none at all."""
    expected = {
        f"{moment}/{name}": () if moment == "step" else tuple(parameter.shape)
        for name, parameter in zip(names, parameters, strict=True)
        for moment in MOMENTS
    }
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} not in ({}, expected):
        raise CheckpointError(f"{folder}: optimizer.safetensors does not hold this learner's state")


def load_adam_tensors(
    optimizer: Any, tensors: Mapping[str, Tensor], names: Sequence[str], parameters: Sequence[Tensor]
) -> None:
    """Put what `adam_tensors` gave back, for an optimiser with any number of parameter groups."""
    order = {id(parameter): name for name, parameter in zip(names, parameters, strict=True)}
    listed = [order[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    # Adam has no state before its first update.
    state = (
        {index: {moment: tensors[f"{moment}/{name}"] for moment in MOMENTS} for index, name in enumerate(listed)}
        if tensors
        else {}
    )
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def digest_of(steps: int, tensors: Mapping[str, Tensor]) -> str:
    """BLAKE2b (hex) over the number of steps and every tensor, in a fixed order."""
    import torch

    digest = hashlib.blake2b(str(steps).encode(), digest_size=32)
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
