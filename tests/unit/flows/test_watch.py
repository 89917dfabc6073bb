"""An abandoned child is told to stop, and ended when it cannot."""

import os
import threading
from uuid import uuid4

import pytest

from flows import watch
from flows.watch import StopWatch


@pytest.mark.parametrize("stopping", [False, True])
def test_whoever_is_abandoned_and_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch, stopping: bool) -> None:
    ended, stop = threading.Event(), threading.Event()
    monkeypatch.setenv(watch.PARENT_PID, "1" if os.getppid() != 1 else "2")
    monkeypatch.setattr(watch, "PID_INTERVAL_S", 0.01)
    monkeypatch.setattr(watch, "ABANDONED_GRACE_S", 0.01)
    monkeypatch.setattr(watch, "read_run", lambda _: None)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    if stopping:
        stop.set()
    with StopWatch(stop, uuid4()) as found:
        assert ended.wait(30)
        assert stop.is_set()
    assert found.parent_died


def test_whoever_comes_to_an_end_in_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    left = threading.Event()
    monkeypatch.setenv(watch.PARENT_PID, "1" if os.getppid() != 1 else "2")
    monkeypatch.setattr(watch, "PID_INTERVAL_S", 0.01)
    monkeypatch.setattr(watch, "read_run", lambda _: None)
    monkeypatch.setattr(os, "_exit", lambda code: left.set())
    with StopWatch(stop := threading.Event(), uuid4()) as found:
        assert stop.wait(30)
    for thread in found._threads:
        thread.join(30)
    assert not left.is_set()
