"""Several rewards of one completion as one number."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

MEAN_DECAY = 0.99  # Of the running mean, per batch.


class RewardCombiner:
    """Weights, clips and smooths; the running mean belongs to one generator's life."""

    def __init__(self, weights: Sequence[float], *, clip: float | None = None, smoothing: float = 0.0) -> None:
        self._weights = np.asarray(weights, dtype=np.float64)
        self._clip = clip
        self._smoothing = smoothing
        self._mean: float | None = None

    def __call__(self, values: Array) -> Array:
        """Weighted sums [N] of values [N, F]; a NaN is left out of its row's sum, a row of NaN alone stays NaN.

        Clipped to +-clip; with smoothing s a reward r becomes (1 - s) r + s m, m the running mean of rewards.
        """
        missing = np.isnan(values)
        sums = np.where(missing, 0.0, values) @ self._weights
        rewards = np.where(missing.all(axis=1), np.nan, sums)
        if self._clip is not None:
            rewards = np.clip(rewards, -self._clip, self._clip)
        known = rewards[~np.isnan(rewards)]
        if self._smoothing and known.size:
            mean = float(known.mean())
            self._mean = mean if self._mean is None else MEAN_DECAY * self._mean + (1 - MEAN_DECAY) * mean
            rewards = (1 - self._smoothing) * rewards + self._smoothing * self._mean
        return np.asarray(rewards, dtype=np.float64)
