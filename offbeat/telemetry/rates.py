"""What happened lately: a rate over a time window, percentiles of the last values, and the share of time spent busy.

Each tracker is written by one thread and read by others (the HTTP endpoint); a lock is held for a few microseconds.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Clock = Callable[[], float]
Values = np.ndarray[Any, Any] | Sequence[float] | float


class WindowRate:
    """Events per second over the last `window_s` seconds, or since the start while that is shorter."""

    def __init__(self, window_s: float = 30.0, *, clock: Clock = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._lock = threading.Lock()
        self._begun_s = clock()
        self._events: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, count: float) -> None:
        """Count `count` events now."""
        now = self._clock()
        with self._lock:
            self._events.append((now, count))
            self._sum += count
            self._forget(now)

    def per_second(self) -> float:
        """The rate; 0 before anything was counted."""
        now = self._clock()
        with self._lock:
            self._forget(now)
            elapsed_s = min(self._window_s, now - self._begun_s)
            return self._sum / elapsed_s if self._events and elapsed_s > 0 else 0.0

    def _forget(self, now: float) -> None:
        while self._events and self._events[0][0] <= now - self._window_s:
            self._sum -= self._events.popleft()[1]


class RecentPercentiles:
    """Percentiles of the last `capacity` values, kept in a ring of float64."""

    def __init__(self, capacity: int = 65536) -> None:
        self._lock = threading.Lock()
        self._ring = np.zeros(capacity, dtype=np.float64)
        self._next = 0
        self._filled = 0

    def add(self, values: Values) -> None:
        """Take in one value or an array of values, oldest first."""
        fresh = np.asarray(values, dtype=np.float64).reshape(-1)[-len(self._ring) :]
        with self._lock:
            head = min(len(fresh), len(self._ring) - self._next)
            self._ring[self._next : self._next + head] = fresh[:head]
            self._ring[: len(fresh) - head] = fresh[head:]
            self._next = (self._next + len(fresh)) % len(self._ring)
            self._filled = min(self._filled + len(fresh), len(self._ring))

    def percentiles(self, *ranks: float) -> list[float | None]:
        """One number for each rank (0 to 100), interpolated as numpy does; None for each while there are no values."""
        with self._lock:
            values = self._ring[: self._filled].copy()
        if not len(values):
            return [None] * len(ranks)
        return [float(number) for number in np.percentile(values, ranks)]


class BusyRatio:
    """Busy seconds as a share of busy and waiting seconds: over the last `window_s` that were reported, and in all."""

    def __init__(self, window_s: float = 30.0) -> None:
        self._window_s = window_s
        self._lock = threading.Lock()
        self._spans: deque[tuple[float, float]] = deque()
        self._recent_busy_s = 0.0
        self._recent_wait_s = 0.0
        self._busy_s = 0.0
        self._wait_s = 0.0

    def add(self, *, busy_s: float = 0.0, wait_s: float = 0.0) -> None:
        """Report seconds spent working and seconds spent waiting."""
        with self._lock:
            self._spans.append((busy_s, wait_s))
            self._recent_busy_s += busy_s
            self._recent_wait_s += wait_s
            self._busy_s += busy_s
            self._wait_s += wait_s
            while (
                len(self._spans) > 1
                and self._recent_busy_s + self._recent_wait_s - sum(self._spans[0]) >= self._window_s
            ):
                old_busy_s, old_wait_s = self._spans.popleft()
                self._recent_busy_s -= old_busy_s
                self._recent_wait_s -= old_wait_s

    @property
    def recent(self) -> float:
        """The share over the window, 0 to 1; 0 before anything was reported."""
        with self._lock:
            return _share(self._recent_busy_s, self._recent_wait_s)

    @property
    def total(self) -> float:
        """The share since the start, 0 to 1; 0 before anything was reported."""
        with self._lock:
            return _share(self._busy_s, self._wait_s)


def _share(busy_s: float, wait_s: float) -> float:
    # Sums that lost what they forgot may end a rounding error outside 0 .. 1.
    return min(1.0, max(0.0, busy_s / (busy_s + wait_s))) if busy_s + wait_s > 0 else 0.0
