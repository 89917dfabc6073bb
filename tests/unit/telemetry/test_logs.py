import io
import logging

import pytest

from offbeat.telemetry import TrajectoryLogLine, configure_logging


@pytest.fixture
def offbeat_logger():
    logger = logging.getLogger("offbeat")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield logger
    logger.handlers[:], logger.level, logger.propagate = before


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_is_plain_with_the_time_in_utc(offbeat_logger):
    stream = io.StringIO()
    configure_logging(stream=stream)
    record = logging.LogRecord("offbeat.trainer", logging.WARNING, "", 0, "step %d", (3,), None)
    record.created, record.msecs = 1689876543.25, 250
    offbeat_logger.handle(record)
    assert stream.getvalue() == "2023-07-20T18:09:03.250Z WARNING offbeat.trainer: step 3\n"


def test_configuring_twice_says_everything_once(offbeat_logger):
    stream = io.StringIO()
    configure_logging(stream=io.StringIO())
    configure_logging(stream=stream)
    offbeat_logger.info("once")
    assert stream.getvalue().count("once") == 1


def test_colour_only_on_a_terminal_that_wants_it(offbeat_logger, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    configure_logging(stream=terminal)
    offbeat_logger.error("bad")
    assert "\x1b[31m" in terminal.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    configure_logging(stream=plain)
    offbeat_logger.error("bad")
    assert "\x1b" not in plain.getvalue()


def test_trajectory_line_has_the_promised_text_and_comes_at_most_once_a_second(offbeat_logger):
    stream = io.StringIO()
    configure_logging(stream=stream)
    now = [50.0]
    line = TrajectoryLogLine(
        logging.getLogger("offbeat.generator"), clock=lambda: now[0], wall_clock=lambda: 1689876543.9
    )
    line.collected(128)
    now[0] += 0.999
    line.collected(64)
    assert stream.getvalue().count("\n") == 1
    assert "Trajectory collected (length=128) at timestamp=1689876543\n" in stream.getvalue()
    now[0] += 0.001
    line.collected(32)
    assert "(length=32)" in stream.getvalue()
