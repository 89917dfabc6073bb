"""How the learning rate moves over a run."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(schedule: Schedule, base: float, *, step: int, max_steps: int) -> float:
    """Learning rate of step 0 .. max_steps - 1: constant, or falling from `base` towards 0; 0 past the end."""
    if schedule == "constant":
        return base
    progress = min(1.0, step / max_steps)
    return base * (1 - progress if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress)))
