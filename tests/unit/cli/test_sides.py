import os
import signal
import threading

import pytest

from offbeat.cli.signals import stopped_by_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_takes_its_default_course(number):
    before = signal.getsignal(number)
    with stopped_by_signals() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.wait(10)
        assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert signal.getsignal(number) == before


@pytest.fixture
def joined(monkeypatch):
    calls = []
    monkeypatch.setattr("offbeat.generator.run_generator", lambda run, index, *, stop: calls.append((run, index, stop)))
    monkeypatch.setattr("offbeat.trainer.run_trainer", lambda run, *, stop: calls.append((run, stop)))
    monkeypatch.setattr("offbeat.telemetry.configure_logging", lambda: None)
    return calls


def test_a_generator_joins_by_index(invoke, made, home, joined):
    assert invoke("generator", "made", "--index", 1, "--home", home).exit_code == 0
    [(run, index, stop)] = joined
    assert (run, index) == (made, 1)
    assert isinstance(stop, threading.Event)


def test_a_generator_that_the_run_does_not_have_is_refused(invoke, made, home, joined):
    result = invoke("generator", "made", "--index", 2, "--home", home)
    assert (result.exit_code, joined) == (2, [])
    assert "--index: got 2, expected 0 to 1" in result.stderr


def test_a_trainer_joins(invoke, made, home, joined):
    assert invoke("trainer", "made", "--home", home).exit_code == 0
    assert joined[0][0] == made
