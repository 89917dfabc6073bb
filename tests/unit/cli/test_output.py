import logging
import os
import sys

import pytest

from offbeat.cli.output import errors_told_once, print_json, print_table, short_number, silent_stdout
from offbeat.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (950, "950"), (12345, "12.3k"), (1250000, "1.25M"), (3e9, "3G"), (-2000, "-2k")]
)
def test_short_numbers(value, text):
    assert short_number(value) == text


def test_json_has_no_nan(capsys):
    print_json({"a": float("nan"), "b": [float("inf"), 1], "c": {"d": (1.5, None, True)}})
    assert capsys.readouterr().out == '{"a": null, "b": [null, 1], "c": {"d": [1.5, null, true]}}\n'


def test_tables_are_aligned(capsys):
    print_table([["RUN", "STATUS"], ["a-long-name", "ok"]])
    assert capsys.readouterr().out == "RUN          STATUS\na-long-name  ok\n"


def test_a_silent_stdout_sends_everything_to_stderr_and_comes_back(capfd):
    with silent_stdout(True):
        os.write(1, b"from a child\n")
        sys.stdout.write("from a library\n")
    sys.stdout.write("the result\n")
    out, err = capfd.readouterr()
    assert out == "the result\n"
    assert {"from a child", "from a library"} <= set(err.splitlines())


def test_an_error_of_ours_is_left_to_the_command_and_others_are_not(caplog):
    def log(error, logger="prefect.flow_engine"):
        logging.getLogger(logger).error("it failed", exc_info=error)

    with errors_told_once():
        log(ConfigError("ours, told by Prefect"))
        log(ConfigError("ours, told by us"), "offbeat.trainer")
        log(RuntimeError("somebody else's"))
    log(ConfigError("ours, later"))
    told = [str(record.exc_info[1]) for record in caplog.records]
    assert told == ["ours, told by us", "somebody else's", "ours, later"]
