"""Log lines of a process: plain, in UTC, coloured only on a terminal; and the line that says trajectories arrive."""

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import ClassVar, TextIO

from offbeat.telemetry.rates import Clock


class LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO    offbeat.trainer: message`, the level coloured where wanted."""

    converter = staticmethod(time.gmtime)
    COLOURS: ClassVar = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}

    def __init__(self, *, coloured: bool = False) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line (and its traceback, if any)."""
        line = super().format(record)
        colour = self.COLOURS.get(record.levelname) if self._coloured else None
        return line if colour is None else f"{colour}{line}\x1b[0m"


def configure_logging(level: int | str = logging.INFO, *, stream: TextIO | None = None) -> None:
    """Send the `offbeat` loggers' lines to `stream` (standard error); calling it again replaces the first setting."""
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(LineFormatter(coloured=target.isatty() and "NO_COLOR" not in os.environ))
    logger = logging.getLogger("offbeat")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    # The root logger may have handlers of its own (Prefect's), which would say everything twice.
    logger.propagate = False


class TrajectoryLogLine:
    """Logs `Trajectory collected (length=128) at timestamp=1689876543`, at most once in `interval_s`."""

    def __init__(
        self,
        logger: logging.Logger,
        *,
        interval_s: float = 1.0,
        clock: Clock = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._logger = logger
        self._interval_s = interval_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._next_s = -float("inf")

    def collected(self, length: int) -> None:
        """Say that a trajectory of `length` steps or tokens was collected, unless something was said just now."""
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + self._interval_s
        self._logger.info("Trajectory collected (length=%d) at timestamp=%d", length, int(self._wall_clock()))
