import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from offbeat import __version__
from offbeat.cli import main

DOCUMENT = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
HEAVY = "torch mlflow prefect pandas pyarrow transformers great_expectations pydantic numpy rich httpx yaml starlette"


def test_the_command_is_there_before_anything_heavy():
    code = f"import sys, offbeat.cli; print([name for name in '{HEAVY}'.split() if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_says_what_it_does_and_is_documented(name):
    command = main.commands[name]
    assert command.get_short_help_str(200)
    assert "..." not in command.get_short_help_str(60)
    assert re.search(rf"^## `offbeat {name}[ `]", DOCUMENT, re.MULTILINE)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.name}"
            assert parameter.opts[-1] in DOCUMENT


def test_version(invoke):
    assert invoke("--version").stdout.split()[-1] == __version__


def test_a_misspelt_command_exits_with_2(invoke):
    assert invoke("rum").exit_code == 2


def test_debug_shows_the_traceback_of_an_error(invoke, home):
    result = invoke("--debug", "ledger", "nothing", "--home", home)
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: no run 'nothing'")
