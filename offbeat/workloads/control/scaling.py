"""Running moments: how observations and rewards are scaled."""

import torch
from torch import Tensor, nn

CLIP = 10.0
EPSILON = 1e-8


class RunningNormalizer(nn.Module):
    """Mean and variance of all observations seen, part of the policy's weights; only a learner updates them."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, values: Tensor) -> Tensor:
        """Scale [N, *shape], clipped to ten deviations."""
        return ((values - self.mean) * (self.variance + EPSILON).rsqrt()).clamp(-CLIP, CLIP)

    def deviation(self) -> Tensor:
        """Running deviation, [*shape]."""
        return (self.variance + EPSILON).sqrt()

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """Take in [N, *shape], in float64 (Chan, Golub and LeVeque 1983, eq. 2.1)."""
        new_variance, new_mean = torch.var_mean(values.double(), dim=0, correction=0)
        old, new = int(self.count), len(values)
        total = old + new
        shift = new_mean - self.mean.double()
        squares = self.variance.double() * old + new_variance * new + shift.square() * (old * new / total)
        self.mean.copy_(self.mean.double() + shift * (new / total))
        self.variance.copy_(squares / total)
        self.count.fill_(total)


def discounted_sums(rewards: Tensor, cuts: Tensor, discount: float) -> Tensor:
    """Running discounted sums G_t = r_t + discount G_{t-1} inside each unroll, begun anew after a cut; all [T, N]."""
    sums = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[0])
    for t in range(len(rewards)):
        torch.add(rewards[t], running, alpha=discount, out=sums[t])
        running = sums[t].masked_fill(cuts[t], 0.0)
    return sums
