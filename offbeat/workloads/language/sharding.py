"""A model cut among the trainer's processes (FSDP), and its tensors as wholes and as pieces.

    shard(model) ──> parameters, gradients and AdamW's moments are pieces (DTensor) from then on
    whole(piece) ──> everywhere, by all processes together        piece_of(whole, like) ──> one's own, by oneself

What is not cut passes through all of them unchanged, so that those who use them need not ask. Torch's parts for this
take a second and more to import: only a process that cuts a model pays for them.
"""

import sys
from typing import Any

import torch
from torch import Tensor


def shard(model: Any, *, num_processes: int, device: torch.device) -> None:
    """Cut a model in place, block by block; a block is whole only while it computes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(device.type, (num_processes,))
    names = set(model._no_split_modules or ())
    for block in [module for module in model.modules() if type(module).__name__ in names]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Each process's loss is its part of a sum already.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def whole(tensor: Any) -> Tensor:
    """The tensor with all its pieces; every process of the team must ask at the same time."""
    found: Tensor = tensor.full_tensor() if _is_piece(tensor) else tensor
    return found


def own_piece(tensor: Any) -> Tensor:
    """What this process holds of it."""
    found: Tensor = tensor.to_local() if _is_piece(tensor) else tensor
    return found


def piece_of(tensor: Tensor, like: Any) -> Tensor:
    """A whole tensor, cut as `like` is."""
    if not _is_piece(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    moved = tensor.to(like.device)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


def _is_piece(tensor: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # Without it there are no pieces.
    return module is not None and isinstance(tensor, module.DTensor)
