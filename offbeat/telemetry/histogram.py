"""A distribution that takes whole arrays: a step observes thousands of trajectories in one vectorised call."""

import threading
from collections.abc import Sequence

import numpy as np
from prometheus_client.core import HistogramMetricFamily

from offbeat.telemetry.rates import RecentPercentiles, Values


class Distribution:
    """Counts of values by upper bound since the start, and percentiles of the last ones.

    buckets: upper bounds, ascending; values above the last are counted too.
    """

    def __init__(self, name: str, help_text: str, *, buckets: Sequence[float]) -> None:
        self._name = name
        self._help = help_text
        self._bounds = np.asarray(buckets, dtype=np.float64)
        self._labels = [*(str(float(bound)) for bound in buckets), "+Inf"]
        self._lock = threading.Lock()
        self._counts = np.zeros(len(self._labels), dtype=np.int64)
        self._sum = 0.0
        self._largest: float | None = None
        self._recent = RecentPercentiles()

    def observe(self, values: Values) -> None:
        """Count one value or an array of values; NaN is left out, for it would poison the sum forever."""
        array = np.asarray(values, dtype=np.float64).reshape(-1)
        array = array[~np.isnan(array)]
        if not len(array):
            return
        counts = np.bincount(np.searchsorted(self._bounds, array, side="left"), minlength=len(self._labels))
        largest = float(array.max())
        with self._lock:
            self._counts += counts
            self._sum += float(array.sum())
            self._largest = largest if self._largest is None else max(self._largest, largest)
        self._recent.add(array)

    @property
    def largest(self) -> float | None:
        """The largest value since the start, None before the first."""
        return self._largest

    def percentiles(self, *ranks: float) -> list[float | None]:
        """One number for each rank (0 to 100) over the last 65,536 values; None for each before the first."""
        return self._recent.percentiles(*ranks)

    def family(self) -> HistogramMetricFamily:
        """The histogram as Prometheus wants it: cumulative counts by upper bound."""
        with self._lock:
            cumulative, total = np.cumsum(self._counts).tolist(), self._sum
        family = HistogramMetricFamily(self._name, self._help)
        family.add_metric([], buckets=list(zip(self._labels, cumulative, strict=True)), sum_value=total)
        return family
