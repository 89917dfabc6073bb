"""Which of the processes that torchrun (or another launcher with its environment) started is this one?"""

import os
from collections.abc import Mapping

# Taken away once a process has joined: accelerate would else wrap the model and wait for the others in every pass.
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """The place among the launcher's processes, from 0; None in a plain command."""
    return int(environ["RANK"]) if all(environ.get(name) for name in NEEDED) else None
