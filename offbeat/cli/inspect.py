"""Looking at runs: `runs`, `status`, `ledger`, `replay`. Nothing here changes anything."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offbeat.cli.options import home_option, json_option, run_argument
from offbeat.cli.output import print_json, print_table
from offbeat.cli.report import evaluation_text, print_summary
from offbeat.errors import OffbeatError

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
            found = Run.open_record(folder)
            report = found.read_report() or {}
            status = "working" if found.roles_held() else report.get("status", "stopped")
        except OffbeatError as error:
            report, status = {}, f"unreadable: {str(error).splitlines()[0]}"
        rows.append(
            [
                folder.name,
                str(status),
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
    from offbeat.runs import Run

    found = Run.open_record(run, home=home)
    processes = _processes(found)
    account = read_account(found)
    state = _state(found, account)
    if as_json:
        print_json(
            {
                "run_id": found.run_id,
                "status": state,
                "processes": processes,
                "account": _account(account),
                "report": found.read_report(),
            }
        )
        return
    hint = f"; continue with `offbeat resume {found.run_id}`" if state == "stopped" else ""
    print_summary({"run_id": found.run_id, "status": state + hint, **_account(account)})
    if processes:
        print_table([["PROCESS", "PHASE", "HEARD", "PID", "HTTP"], *(_process_row(p) for p in processes.values())])


def _processes(run: "Run") -> dict[str, dict[str, Any]]:
    """The last word of every process, with `alive`: whether it still holds its role in the run's folder."""
    from offbeat.runs import read_status

    store = run.open_store()
    try:
        said, held = read_status(store), run.roles_held()
    finally:
        store.close()
    return {role: {**status, "alive": role in held} for role, status in said.items()}


def _state(run: "Run", account: "Account") -> str:
    """`working`, how the report says that the run ended, or `stopped` for a run that has not come to its end."""
    held = run.roles_held()
    if "lifecycle" in held:
        return "working"
    if held:
        return f"working without a lifecycle: {', '.join(sorted(held))}"
    report = run.read_report()
    # A report of fewer steps is of an earlier life; the one that went on from there was stopped.
    if report and report.get("steps", account.steps) == account.steps:
        return str(report.get("status"))
    return "stopped"


def _process_row(process: dict[str, Any]) -> list[str]:
    alive, phase = process["alive"], str(process.get("phase", ""))
    age_s = (time.time_ns() - int(process.get("updated_at_ns", 0))) / 1e9
    return [
        str(process.get("role", "")),
        phase if alive or phase == "stopped" else "gone",
        f"{age_s:.0f} s ago",
        # The system gives a dead process's number and port to others.
        *(str(process.get(name, "")) if alive else "" for name in ("pid", "http")),
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

    account = read_account(Run.open_record(run, home=home))
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
