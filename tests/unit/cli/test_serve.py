import os
import signal

import pytest

from offbeat.errors import NotReady


@pytest.fixture
def stack(monkeypatch):
    calls = []

    def fake(home, say, *, prefect_port, mlflow_port):
        calls.append((home, prefect_port, mlflow_port))
        say("Prefect  http://127.0.0.1:4200")
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            say("stopping")

    monkeypatch.setattr("offbeat.cli.serve_stack.serve", fake)
    return calls


def test_serve_says_where_everything_is_and_ends_well_when_it_is_told_to(invoke, stack, home):
    result = invoke("serve", "--mlflow-port", 0, "--home", home)
    assert (result.exit_code, stack) == (0, [(home, 4200, 0)])
    assert result.stderr == "Prefect  http://127.0.0.1:4200\nstopping\n"


def test_a_part_that_does_not_start_exits_with_2(invoke, home, monkeypatch):
    def fails(*arguments, **options):
        raise NotReady("no prefect.yaml here")

    monkeypatch.setattr("offbeat.cli.serve_stack.serve", fails)
    assert invoke("serve", "--home", home).exit_code == 2
