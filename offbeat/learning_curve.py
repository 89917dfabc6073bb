"""The learning curve: mean return per training step, as a figure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, np.dtype[np.float64]]

SMOOTHED_SHARE = 0.02  # Of the points, on either side of each.


def draw_learning_curve(
    steps: Sequence[int], returns: Sequence[float], *, title: str, target: float | None = None
) -> "Figure":
    """Draw the return of each step, its running mean, and the gate's threshold where there is one.

    Steps in which no episode ended (NaN) are left out. The figure belongs to no window and needs no display.
    """
    from matplotlib.figure import Figure

    values = np.asarray(returns, dtype=np.float64)
    known = np.isfinite(values)
    x, y = np.asarray(steps)[known], values[known]
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(x, y, color="tab:blue", alpha=0.3, linewidth=1, label="return")
    axes.plot(x, _running_mean(y), color="tab:blue", linewidth=2, label="running mean")
    if target is not None:
        axes.axhline(target, color="tab:green", linestyle="--", linewidth=1, label=f"threshold {target:g}")
    axes.set(title=title, xlabel="training step", ylabel="mean episode return")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    return figure


def _running_mean(values: Array) -> Array:
    """Mean over a centred window, cut at both ends."""
    reach = int(len(values) * SMOOTHED_SHARE)
    totals = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(values))
    means: Array = (totals[high] - totals[low]) / (high - low)
    return means
