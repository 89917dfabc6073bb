"""From the rewards of a group's completions to their advantages. What is not finite is unknown: it gets advantage 0.

rewards [N, G] ──> against the group (grpo, dr_grpo, rloo), or the whole batch (reinforce++) ──> advantages [N, G]
"""

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["grpo", "dr_grpo", "rloo", "reinforce++"]

EPSILON = 1e-4  # As TRL has it.


def group_advantages(rewards: Tensor, estimator: Estimator) -> Tensor:
    """Advantages [N, G] of N groups.

    grpo: (r - mean) / (std + 1e-4), std with Bessel's correction as in TRL (Shao 2024, sec. 4.1.2). dr_grpo: r - mean
    (Liu 2025). rloo: r minus the mean of the others (Ahmadian 2024, eq. 7). reinforce++: (r - mean) / (std + 1e-4)
    over the whole batch (Hu 2025).
    """
    known = torch.isfinite(rewards)
    # In float64 the mean of equal rewards is exactly theirs; a rounding error would be divided by next to nothing.
    filled = torch.where(known, rewards, 0.0).double()
    if estimator == "reinforce++":
        known, filled = known.reshape(1, -1), filled.reshape(1, -1)
    count = known.sum(-1, keepdim=True)
    centred = torch.where(known, filled - filled.sum(-1, keepdim=True) / count.clamp(min=1), 0.0)
    if estimator in ("grpo", "reinforce++"):
        deviation = (centred.square().sum(-1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        centred = centred / (deviation + EPSILON)
    elif estimator == "rloo":
        # r - (sum - r) / (n - 1) = (r - mean) n / (n - 1)
        centred = centred * count / (count - 1).clamp(min=1)
    return centred.reshape(rewards.shape).to(rewards.dtype)


def equal_groups(rewards: Tensor) -> Tensor:
    """Which groups [N] teach nothing: all known rewards are equal, or fewer than two are known."""
    known = torch.isfinite(rewards)
    high = torch.where(known, rewards, -torch.inf).amax(-1)
    low = torch.where(known, rewards, torch.inf).amin(-1)
    return (high <= low) | (known.sum(-1) < 2)
