"""What many commands share: the folder of the runs, a run's name, overrides, and how errors become exit codes."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from offbeat.errors import OffbeatError

INTERRUPTED = 130

Command = TypeVar("Command", bound=Callable[..., Any])


class OffbeatGroup(click.Group):
    """Says an OffbeatError in one message on standard error and ends with its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except OffbeatError as error:
            if ctx.params.get("debug"):
                click.echo(traceback.format_exc(), err=True)
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


def home_option(command: Command) -> Command:
    """`--home`: the folder that holds all runs, as an absolute path."""
    return click.option(
        "--home",
        envvar="OFFBEAT_HOME",
        default="runs",
        show_default=True,
        show_envvar=True,
        type=click.Path(path_type=Path),
        callback=lambda context, parameter, value: value.absolute(),
        help="Folder that holds all runs.",
    )(command)


def run_argument(command: Command) -> Command:
    """`RUN`: a run's id, or its folder."""
    return click.argument("run")(command)


def set_option(command: Command) -> Command:
    """`--set section.key=value`, any number of times."""
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override one key of the configuration, as in training.max_steps=100; may be repeated.",
    )(command)


def json_option(command: Command) -> Command:
    """`--json`: one JSON object as the last line of standard output, and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(command)
