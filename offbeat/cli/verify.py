"""`offbeat verify`: every byte of a checkpoint against its manifest, one line for each copy of it."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offbeat.cli.options import home_option
from offbeat.errors import CheckpointError, ObjectNotFound

if TYPE_CHECKING:
    from offbeat.runs import Run
    from offbeat.store import Store
    from offbeat.trainer.checkpoint import Checkpoint


@click.command()
@click.argument("checkpoint")
@home_option
def verify(*, checkpoint: str, home: Path) -> None:
    """Check every byte of a checkpoint.

    CHECKPOINT is a checkpoint's folder, or a run (its id or folder) for both copies of the newest one: the run's own
    and the one in the store. Names each bad file and exits with 1 when there is one.
    """
    from offbeat.runs import Run
    from offbeat.trainer.checkpoint import verify as faults_of

    folder = Path(checkpoint)
    if folder.is_dir() and not (folder / "run.yaml").is_file():
        good = _report(str(folder), faults_of(folder))
    else:
        good = _verify_newest(Run.open_record(checkpoint, home=home))
    click.get_current_context().exit(0 if good else 1)


def _verify_newest(run: "Run") -> bool:
    from offbeat.trainer.checkpoint import list_checkpoints
    from offbeat.trainer.checkpoint import verify as faults_of

    checkpoints = list_checkpoints(run.checkpoints)
    if not checkpoints:
        raise CheckpointError(f"run {run.run_id} has no checkpoint in {run.checkpoints}")
    newest = checkpoints[-1]
    faults = faults_of(newest.folder)
    good = _report(f"local  {newest.folder}", faults)
    store = run.open_store()
    try:
        return _verify_stored(run, newest, store, local_is_good=not faults) and good
    finally:
        store.close()


def _verify_stored(run: "Run", newest: "Checkpoint", store: "Store", *, local_is_good: bool) -> bool:
    from offbeat.trainer.checkpoint import compare_with_store, stored_steps

    name = f"store  {store.uri_of(f'checkpoints/{newest.folder.name}')}"
    if newest.step not in stored_steps(store) and not run.read_report():
        click.echo(f"{name}: not there yet")
        return True
    return _report(name, compare_with_store(newest, store) if local_is_good else _own_faults(newest, store))


def _own_faults(newest: "Checkpoint", store: "Store") -> list[str]:
    """The stored copy held to its own manifest, for a local one that is damaged is no measure."""
    from offbeat.trainer.checkpoint import MANIFEST, Checkpoint, compare_with_store

    key = f"checkpoints/{newest.folder.name}/{MANIFEST}"
    with tempfile.TemporaryDirectory(prefix="offbeat-verify-") as folder:
        try:
            (Path(folder) / MANIFEST).write_bytes(store.get(key))
        except ObjectNotFound:
            return [f"{store.uri_of(key)}: missing"]
        try:
            return compare_with_store(Checkpoint(step=newest.step, folder=Path(folder)), store)
        except CheckpointError:
            return [f"{store.uri_of(key)}: not in md5sum's format"]


def _report(name: str, faults: list[str]) -> bool:
    for fault in faults:
        click.echo(fault, err=True)
    click.echo(f"{name}: {'FAILED' if faults else 'OK'}")
    return not faults
