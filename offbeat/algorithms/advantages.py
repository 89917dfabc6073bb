"""What is done to advantages before a loss sees them."""

from torch import Tensor

EPSILON = 1e-8


def normalize(advantages: Tensor, weights: Tensor) -> Tensor:
    """Advantages with zero mean and unit deviation over the slots of weight 1 (others weigh 0); same shape."""
    count = weights.sum().clamp(min=1.0)
    centred = advantages - (advantages * weights).sum() / count
    deviation = ((centred.square() * weights).sum() / count).sqrt()
    return centred / (deviation + EPSILON)
