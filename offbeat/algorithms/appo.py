"""The loss of asynchronous PPO: the clipped surrogate against the behaviour policy, value regression, entropy."""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # Beyond this the ratio would overflow; the clip has long since taken effect.


@dataclass(frozen=True, slots=True, kw_only=True)
class AppoLoss:
    """`total` carries the gradient; the rest are its parts and diagnostics, scalars without one."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    clip_fraction: Tensor
    approx_kl: Tensor


def appo_loss(
    *,
    log_ratios: Tensor,
    advantages: Tensor,
    values: Tensor,
    targets: Tensor,
    entropies: Tensor,
    weights: Tensor,
    clip_ratio: float,
    value_coef: float,
    entropy_coef: float,
) -> AppoLoss:
    """Means over the slots of weight 1 (others weigh 0); all tensors of one shape, log_ratios new over behaviour.

    policy: -min(r A, clip(r, 1 - e, 1 + e) A) (Schulman 2017, eq. 7) with r against the policy that acted, so that r
    is the importance weight as well. value: half the squared error. approx_kl: r - 1 - log r (Schulman 2020).
    """
    bounded = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratios = bounded.exp()
    clipped = ratios.clamp(1 - clip_ratio, 1 + clip_ratio)
    scale = weights / weights.sum().clamp(min=1.0)
    policy = -(torch.minimum(ratios * advantages, clipped * advantages) * scale).sum()
    errors = values - targets
    value = 0.5 * (errors * errors * scale).sum()  # The gradient of a product is cheaper than that of a power.
    entropy = (entropies * scale).sum()
    with torch.no_grad():
        clip_fraction = ((ratios != clipped) * scale).sum()
        approx_kl = ((ratios - 1 - bounded) * scale).sum()
    return AppoLoss(
        total=policy + value_coef * value - entropy_coef * entropy,
        policy=policy.detach(),
        value=value.detach(),
        entropy=entropy.detach(),
        clip_fraction=clip_fraction,
        approx_kl=approx_kl,
    )
