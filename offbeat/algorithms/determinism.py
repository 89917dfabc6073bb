"""The same bits each time: what every process that computes a training step sets first."""

import os


def make_deterministic(num_threads: int) -> None:
    """Make this process's torch compute the same bits each time: deterministic kernels, a fixed thread count."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True)
    # Deterministic mode would fill every new tensor with NaN first, which costs time and changes no result here.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
