"""The same bits each time: what every process that computes a training step sets first."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


def make_deterministic(num_threads: int) -> None:
    """Make this process's torch compute the same bits each time: deterministic kernels, a fixed thread count."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True)
    # Deterministic mode would fill every new tensor with NaN first, which costs time and changes no result here.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def fixed_threads(num_threads: int) -> Iterator[None]:
    """Within the block torch uses this many threads: sums depend on it, and too many stand in each other's way."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
