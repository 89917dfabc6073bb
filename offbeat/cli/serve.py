"""`offbeat serve`: a Prefect server, MLflow, a worker and the deployments, on this machine until Ctrl-C."""

from pathlib import Path

import click

from offbeat.cli.options import home_option
from offbeat.cli.signals import interruptible


@click.command()
@click.option(
    "--prefect-port", type=click.IntRange(0, 65535), default=4200, show_default=True, help="0 takes a free one."
)
@click.option(
    "--mlflow-port", type=click.IntRange(0, 65535), default=5000, show_default=True, help="0 takes a free one."
)
@home_option
def serve(*, prefect_port: int, mlflow_port: int, home: Path) -> None:
    """Keep Prefect, MLflow and the deployments here.

    Starts a Prefect server, an MLflow server, the deployments of prefect.yaml and a worker that carries them out, and
    stops all of them at Ctrl-C. Must be called in the top folder of the repository.
    """
    from offbeat.cli.serve_stack import serve as serve_all

    def say(line: str) -> None:
        click.echo(line, err=True)

    with interruptible():
        serve_all(home, say, prefect_port=prefect_port, mlflow_port=mlflow_port)
