"""Running moments: how observations are scaled to zero mean and unit deviation."""

import torch
from torch import Tensor, nn

CLIP = 10.0
EPSILON = 1e-8
ROWS_AT_ONCE = 8192  # Bounds the float64 copy of a batch of images.


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

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """Take in [N, *shape], in float64 (Chan, Golub and LeVeque 1983, eq. 2.1)."""
        for rows in torch.split(values, ROWS_AT_ONCE):
            self._merge(rows.double())

    def _merge(self, rows: Tensor) -> None:
        new_variance, new_mean = torch.var_mean(rows, dim=0, correction=0)
        old, new = int(self.count), len(rows)
        total = old + new
        shift = new_mean - self.mean.double()
        mean = self.mean.double() + shift * (new / total)
        squares = self.variance.double() * old + new_variance * new + shift.square() * (old * new / total)
        self.mean.copy_(mean)
        self.variance.copy_(squares / total)
        self.count.fill_(total)
