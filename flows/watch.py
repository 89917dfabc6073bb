"""Hearing that a flow run is to stop, from wherever that is said.

the process that started this one is gone  ─┐
the run is being cancelled (in the UI)     ─┼──> `stop` is set, `reason` says why
the parent run has ended                   ─┘
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self
from uuid import UUID

from flows.states import read_run

PARENT_PID = "OFFBEAT_PARENT_PID"
PID_INTERVAL_S = 0.5
STATE_INTERVAL_S = 2.0
# What an abandoned process has to keep its state; one that stands still would hold its role against every later try.
ABANDONED_GRACE_S = 30.0


class StopWatch:
    """A thread that sets `stop`. An API that is away says nothing, and nothing is done."""

    def __init__(self, stop: threading.Event, flow_run_id: UUID, *, parent: UUID | None = None) -> None:
        self.reason = ""
        self.parent_died = False
        self._stop = stop
        self._flow_run_id = flow_run_id
        self._parent = parent
        self._parent_pid = int(os.environ.get(PARENT_PID, "0"))
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=watch, name="stop-watch", daemon=True)
            for watch in (self._watch_parent, self._watch_states)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.set()

    def _watch_states(self) -> None:
        while not self._closing.wait(STATE_INTERVAL_S) and not self._stop.is_set():
            self._look_at_states()

    def _watch_parent(self) -> None:
        """Also while it is stopping: whoever is abandoned and does not come to an end is ended."""
        while not self.parent_died and not self._closing.wait(PID_INTERVAL_S):
            self._look_at_parent()
        if self.parent_died and not self._closing.wait(ABANDONED_GRACE_S):
            os._exit(1)

    def _look_at_parent(self) -> None:
        if self._parent_pid and os.getppid() != self._parent_pid:
            self.parent_died = True
            self._say_stop("the process that started it is gone")

    def _look_at_states(self) -> None:
        own = read_run(self._flow_run_id)
        if own is not None and own.state is not None and (own.state.is_cancelling() or own.state.is_final()):
            self._say_stop(f"its state became {own.state.name}")
        parent = read_run(self._parent) if self._parent else None
        if parent is not None and parent.state is not None and parent.state.is_final():
            self._say_stop(f"its parent run ended as {parent.state.name}")

    def _say_stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._stop.set()


@contextmanager
def stopped_by_signals(stop: threading.Event, *, until_exit: bool = False) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop` while the block runs, and nothing is torn down halfway.

    Prefect's own handler would end the flow at once. Only the main thread hears signals: in others nothing changes.
    until_exit: a signal that comes after the block is not heard either, so that a process which has stopped and is
    about to say so is not called crashed.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if until_exit else handler)
