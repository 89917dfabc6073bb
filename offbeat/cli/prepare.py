"""`offbeat prepare`: what `make install` does once, so that the first run starts as fast as the others."""

import click

from offbeat.errors import NotReady


@click.command(hidden=True)
def prepare() -> None:
    """Make the empty Prefect database once.

    The server of every run starts from a copy of it. Does nothing when it is there. Exits with 0 also when it cannot be
    made, for every run can do without it.
    """
    from offbeat.cli.prefect_server import prepare_template, template_path

    if template_path().is_file():
        return
    click.echo("preparing the database that Prefect servers start from", err=True)
    try:
        prepare_template()
    except NotReady as error:
        click.echo(
            f"not prepared, so the first run in each home folder takes some ten seconds longer: {error}", err=True
        )
