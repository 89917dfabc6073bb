"""`offbeat doctor`: one line for each thing that a run needs, before anything starts."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offbeat.cli.options import home_option, set_option
from offbeat.cli.signals import interruptible
from offbeat.errors import ConfigError, NotReady

if TYPE_CHECKING:
    from offbeat.config import RunConfig


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@set_option
@home_option
def doctor(*, config: Path | None, overrides: Sequence[str], home: Path) -> None:
    """Check what a run needs on this machine.

    One line for each check: what every run needs, and with CONFIG what that one needs besides. Exits with 2 when a
    check failed.
    """
    from offbeat.doctor import machine_checks, run_checks

    with interruptible():  # What a check has written goes with it, also when it is told to stop.
        failed = _report({**machine_checks(home), "prefect": _check_prefect})
        if config is not None:
            settled = _load(config, overrides)
            failed += _report(run_checks(settled, home)) if settled else 1
    if failed:
        click.echo(f"{failed} check{'s' * (failed > 1)} failed", err=True)
        click.get_current_context().exit(NotReady.exit_code)


def _report(checks: Mapping[str, Callable[[], str]]) -> int:
    from offbeat.doctor import examine

    failed = 0
    for name, check in checks.items():
        finding = examine(name, check)
        _print_line(finding.name, ok=finding.ok, detail=finding.detail)
        failed += not finding.ok
    return failed


def _print_line(name: str, *, ok: bool, detail: str) -> None:
    mark = click.style("ok    ", fg="green") if ok else click.style("FAILED", fg="red")
    click.echo(f"{mark} {name:<12} {detail}")


def _load(config: Path, overrides: Sequence[str]) -> "RunConfig | None":
    from offbeat.config import config_digest, load_config

    try:
        settled = load_config(config, overrides)
    except ConfigError as error:
        _print_line("config", ok=False, detail=str(error))
        return None
    _print_line("config", ok=True, detail=f"{config} ({settled.name}, digest {config_digest(settled)[:12]})")
    return settled


def _check_prefect() -> str:
    from offbeat.cli.prefect_server import check_api, free_port

    given = os.environ.get("PREFECT_API_URL")
    if given:
        check_api(given)
        return f"{given} answers"
    return f"a server of the run's own will be started, on a free port such as {free_port()}"
