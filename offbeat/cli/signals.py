"""What SIGTERM, Ctrl-C and a closed terminal do to a command: end it like Ctrl-C, or ask it to stop."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal end the block as Ctrl-C does, so that everything it started is stopped.

    Ctrl-C too is set anew: a shell that starts a command in the background has it ignore that signal.
    """

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(signal.Signals(number).name)

    with _handled(interrupt, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM or Ctrl-C sets; after that both have their default effect again."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)

    with _handled(ask, signal.SIGTERM, signal.SIGINT):
        yield stop


@contextmanager
def _handled(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
