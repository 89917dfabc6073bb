"""One side alone, joining a run: `generator` and `trainer`.

The first signal stops it at the next safe point, a second one at once.
"""

from pathlib import Path

import click

from offbeat.cli.options import home_option, run_argument
from offbeat.cli.signals import stopped_by_signals


@click.command()
@run_argument
@click.option(
    "--index", required=True, type=click.IntRange(min=0), help="Which generator of the run this one is, from 0."
)
@home_option
def generator(*, run: str, index: int, home: Path) -> None:
    """Be one generator of a run.

    Produces until the run is finished, or a signal comes.
    """
    from offbeat.errors import ConfigError
    from offbeat.generator import run_generator
    from offbeat.runs import Run
    from offbeat.telemetry import configure_logging

    found = Run.open(run, home=home)
    count = found.config.generator.num_generators
    if index >= count:
        raise ConfigError(f"--index: got {index}, expected 0 to {count - 1}, for the run has {count} generators")
    configure_logging()
    with stopped_by_signals() as stop:
        run_generator(found, index, stop=stop)


@click.command()
@run_argument
@home_option
def trainer(*, run: str, home: Path) -> None:
    """Be the trainer of a run.

    Goes on from the newest valid checkpoint until the run's steps are trained, or a signal comes.
    """
    from offbeat.runs import Run
    from offbeat.telemetry import configure_logging
    from offbeat.trainer import run_trainer

    found = Run.open(run, home=home)
    configure_logging()
    with stopped_by_signals() as stop:
        run_trainer(found, stop=stop)
