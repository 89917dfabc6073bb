"""The `offbeat` command. Only click is imported before a command runs, so that `offbeat --help` answers at once."""

from offbeat.cli import clock  # The first of all, for it takes the time.

# isort: split
import os

import click

from offbeat import __version__
from offbeat.cli import bench, doctor, inspect, models, prepare, run, serve, sides, verify
from offbeat.cli.options import OffbeatGroup

__all__ = ["clock", "main"]


@click.group(cls=OffbeatGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="offbeat")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(*, debug: bool) -> None:
    """Asynchronous reinforcement-learning post-training, run end to end.

    `offbeat run CONFIG` goes through the whole lifecycle on this machine: it plays, learns, checks, evaluates and
    registers.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # No library's progress bars; tqdm reads this when it is imported.


for _command in (
    run.run,
    run.resume,
    inspect.runs,
    inspect.status,
    inspect.ledger,
    inspect.replay,
    verify.verify,
    models.models,
    models.rollback,
    doctor.doctor,
    serve.serve,
    sides.generator,
    sides.trainer,
    bench.bench,
    prepare.prepare,
):
    main.add_command(_command)
