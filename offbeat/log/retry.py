"""Trying again while the log or the store is away: nothing is lost, and the wait is seen."""

import threading
from collections.abc import Callable
from typing import TypeVar

from offbeat.errors import LogUnavailable, StoreUnavailable

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


def retrying(
    operation: Callable[[], T], *, stop: threading.Event, on_failure: Callable[[str], None] = lambda reason: None
) -> T:
    """The operation's result, tried again with growing pauses until it comes or `stop` is set.

    Raises the last LogUnavailable or StoreUnavailable once `stop` is set; any other error (LogDamaged) at once.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return operation()
        except (LogUnavailable, StoreUnavailable) as error:
            on_failure(str(error))
            if stop.wait(pause_s):
                raise
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
