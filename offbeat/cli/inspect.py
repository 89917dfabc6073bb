"""Looking at runs: `runs`, `status`, `ledger`, `verify`, `replay`. Nothing here changes anything."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offbeat.cli.options import home_option, json_option, run_argument
from offbeat.cli.output import print_json, print_table
from offbeat.cli.report import evaluation_text, print_summary
from offbeat.errors import CheckpointError, OffbeatError

if TYPE_CHECKING:
    from offbeat.ledger import Account
    from offbeat.runs import Run


@click.command()
@home_option
def runs(*, home: Path) -> None:
    """List the runs of a home folder, newest first."""
    from offbeat.runs import Run

    folders = sorted((file.parent for file in home.glob("*/run.yaml")), key=lambda folder: -folder.stat().st_mtime)
    rows = []
    for folder in folders:
        try:
            report = Run.open(folder).read_report() or {"status": "unfinished"}
        except OffbeatError as error:
            report = {"status": f"unreadable: {str(error).splitlines()[0]}"}
        rows.append(
            [
                folder.name,
                str(report.get("status")),
                str(report.get("steps", "")),
                evaluation_text(report.get("evaluation")),
            ]
        )
    if rows:
        print_table([["RUN", "STATUS", "STEPS", "EVALUATION"], *rows])
    else:
        click.echo(f"no runs in {home}", err=True)


@click.command()
@run_argument
@json_option
@home_option
def status(*, run: str, as_json: bool, home: Path) -> None:
    """Show a run's processes and its account."""
    from offbeat.ledger import read_account
    from offbeat.runs import Run, read_status

    found = Run.open(run, home=home)
    store = found.open_store()
    try:
        processes = read_status(store)
    finally:
        store.close()
    account = read_account(found)
    if as_json:
        print_json(
            {
                "run_id": found.run_id,
                "processes": processes,
                "account": _account(account),
                "report": found.read_report(),
            }
        )
        return
    print_summary({"run_id": found.run_id, "status": _state(found, processes), **_account(account)})
    if processes:
        print_table([["PROCESS", "PHASE", "HEARD", "PID", "HTTP"], *(_process_row(p) for p in processes.values())])


def _state(run: "Run", processes: dict[str, dict[str, Any]]) -> str:
    report = run.read_report()
    if any(process.get("phase") != "stopped" for process in processes.values()):
        return "working, or killed: see when its processes were heard last"
    return str(report.get("status")) if report else "unfinished"


def _process_row(process: dict[str, Any]) -> list[str]:
    age_s = (time.time_ns() - int(process.get("updated_at_ns", 0))) / 1e9
    names = ("role", "phase")
    return [
        *(str(process.get(name, "")) for name in names),
        f"{age_s:.0f} s ago",
        str(process.get("pid", "")),
        str(process.get("http", "")),
    ]


@click.command()
@run_argument
@json_option
@home_option
def ledger(*, run: str, as_json: bool, home: Path) -> None:
    """Print where every trajectory of a run is.

    produced = trained + stale + evicted + quarantined + pending; exits with 1 when that does not hold.
    """
    from offbeat.ledger import read_account
    from offbeat.runs import Run

    account = read_account(Run.open(run, home=home))
    if as_json:
        print_json(_account(account))
    else:
        for name, value in _account(account).items():
            click.echo(f"{name:<15}{value:>12}")
    if account.difference:
        click.echo(f"error: {account.difference} trajectories of {account.produced} are not accounted for", err=True)
        click.get_current_context().exit(1)


def _account(account: "Account") -> dict[str, int]:
    return {**asdict(account), "difference": account.difference}


@click.command()
@click.argument("checkpoint")
@home_option
def verify(*, checkpoint: str, home: Path) -> None:
    """Check every byte of a checkpoint.

    CHECKPOINT is a checkpoint's folder, or a run (its id or folder) for the newest one, which is then compared with
    its copy in the store as well. Names each bad file and exits with 1 when there is one.
    """
    from offbeat.trainer.checkpoint import verify as faults_of

    folder = Path(checkpoint)
    if folder.is_dir() and not (folder / "run.yaml").is_file():
        _conclude_verification(folder, faults_of(folder))
    else:
        _verify_newest(checkpoint, home)


def _verify_newest(run: str, home: Path) -> None:
    from offbeat.runs import Run
    from offbeat.trainer.checkpoint import compare_with_store, list_checkpoints, stored_steps
    from offbeat.trainer.checkpoint import verify as faults_of

    found = Run.open(run, home=home)
    checkpoints = list_checkpoints(found.checkpoints)
    if not checkpoints:
        raise CheckpointError(f"run {found.run_id} has no checkpoint in {found.checkpoints}")
    newest = checkpoints[-1]
    faults = faults_of(newest.folder)
    if not faults:
        store = found.open_store()
        try:
            if newest.step in stored_steps(store) or found.read_report():
                faults = compare_with_store(newest, store)
            else:
                click.echo(f"{store.uri} has no copy of it yet", err=True)
        finally:
            store.close()
    _conclude_verification(newest.folder, faults)


def _conclude_verification(folder: Path, faults: list[str]) -> None:
    for fault in faults:
        click.echo(fault, err=True)
    click.echo(f"{folder}: {'FAILED' if faults else 'OK'}")
    click.get_current_context().exit(1 if faults else 0)


@click.command()
@run_argument
@click.option("--from", "first", type=click.IntRange(min=1), help="First step to compare; by default the first one.")
@click.option(
    "--to", "last", type=click.IntRange(min=1), help="Last step to compare; by default the last finished one."
)
@json_option
@home_option
def replay(*, run: str, first: int | None, last: int | None, as_json: bool, home: Path) -> None:
    """Repeat a run's steps and compare them bit for bit.

    Reads the trajectories from the log, trains each step as the plan says, and compares the parameters' digest with the
    recorded one. Exits with 1 where they differ.
    """
    from offbeat.runs import Run
    from offbeat.trainer.replay import replay as repeat

    report = repeat(Run.open(run, home=home), first=first, last=last)
    if as_json:
        print_json(asdict(report))
    else:
        click.echo(f"steps {report.first} to {report.last}: {report.steps} compared, {len(report.divergences)} differ")
        for difference in report.divergences:
            click.echo(f"  {difference}")
    click.get_current_context().exit(1 if report.divergences else 0)
