"""Registered models: `models` lists the versions of one, `rollback` makes the former champion the champion again."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from offbeat.cli.options import home_option
from offbeat.cli.output import print_table
from offbeat.errors import ConfigError

if TYPE_CHECKING:
    from offbeat.registry import Registry

SHOWN_TAGS = ("run_id", "step", "checkpoint_digest")


def tracking_option(command: click.decorators.FC) -> click.decorators.FC:
    """`--tracking-uri`: where MLflow is, when it is not the database beside the runs."""
    return click.option(
        "--tracking-uri",
        envvar="MLFLOW_TRACKING_URI",
        show_envvar=True,
        help="MLflow's address; by default the database beside the runs.",
    )(command)


def _open(tracking_uri: str | None, home: Path) -> "Registry":
    from offbeat.registry import Registry

    database = home / "mlflow.db"
    if tracking_uri is None and not database.is_file():
        raise ConfigError(
            f"no MLflow database {database}; name the home folder of your runs, or an address with --tracking-uri"
        )
    return Registry(tracking_uri or f"sqlite:///{database}", experiment="offbeat")


@click.command()
@click.argument("name")
@tracking_option
@home_option
def models(*, name: str, tracking_uri: str | None, home: Path) -> None:
    """List the versions of a registered model.

    Oldest first, with the run, step and checkpoint that each came from.
    """
    registry = _open(tracking_uri, home)
    champion = registry.champion(name)
    versions = registry.versions(name)
    if not versions:
        raise ConfigError(f"no registered model {name!r}")
    rows = [
        [
            str(v.version),
            "champion" if champion and v.version == champion.version else "",
            *(v.tags.get(tag, "") for tag in SHOWN_TAGS),
        ]
        for v in versions
    ]
    print_table([["VERSION", "ALIAS", *(tag.upper() for tag in SHOWN_TAGS)], *rows])


@click.command()
@click.argument("name")
@tracking_option
@home_option
def rollback(*, name: str, tracking_uri: str | None, home: Path) -> None:
    """Make the former champion the champion again.

    NAME is the registered model's; once more goes one version further back.
    """
    version = _open(tracking_uri, home).rollback(name)
    click.echo(f"{name}: version {version.version} is champion again ({version.uri})")
