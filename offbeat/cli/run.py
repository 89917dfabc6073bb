"""`offbeat run` and `offbeat resume`: the whole lifecycle in this process, its children beside it.

check everything cheap ──> Prefect API ──> flows.lifecycle ──> summary, or one JSON object
     exit 2                                    progress on stderr     exit 0 or 1; 130 after Ctrl-C

What it is doing is said on standard error from the first moment on, for some of these steps take many seconds.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offbeat.cli.clock import elapsed_s
from offbeat.cli.options import INTERRUPTED, home_option, json_option, run_argument, set_option
from offbeat.cli.output import errors_told_once, silent_stdout
from offbeat.cli.report import Ending, conclude, unfinished_report
from offbeat.cli.signals import interruptible
from offbeat.errors import GateRejected, NotReady, OffbeatError, RunCancelled, RunFailed

if TYPE_CHECKING:
    from offbeat.config import RunConfig


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@set_option
@click.option("--run-id", help="Id of the new run; by default made of the configuration's name and the time.")
@json_option
@click.option("--require-promotion", is_flag=True, help="Exit with 1 when the gate rejects the model.")
@home_option
def run(
    *, config: Path, overrides: Sequence[str], run_id: str | None, as_json: bool, require_promotion: bool, home: Path
) -> None:
    """Run the whole lifecycle of a configuration on this machine.

    CONFIG is a YAML file such as deployments/cartpole.yaml. Exits with 0 when done, 1 when the run failed, 2 when the
    configuration or the machine is not right, which is said before anything starts.
    """
    from offbeat.config import load_config
    from offbeat.runs import check_new_id, new_run_id

    wanted = [*overrides, *["evaluation.require_promotion=true"] * require_promotion]
    settled = load_config(config, wanted)
    with interruptible(), silent_stdout(as_json):
        chosen = new_run_id(settled.name) if run_id is None else run_id
        check_new_id(chosen, home)
        _say(f"run {chosen} of {config}: starting")
        _check_before_start(settled, home)
        ending = _lifecycle(settled, config=config, overrides=wanted, run_id=chosen, home=home, resume=False)
    conclude(ending, as_json=as_json)


@click.command()
@run_argument
@set_option
@json_option
@home_option
def resume(*, run: str, overrides: Sequence[str], as_json: bool, home: Path) -> None:
    """Continue a run from its newest checkpoint.

    RUN is a run's id or folder. The newest valid checkpoint is taken. Keys may be overridden where that changes no
    planned step; what cannot change is refused.
    """
    from offbeat.config import load_config
    from offbeat.runs import Run

    found = Run.open(run, home=home)
    settled = load_config(found.config_file, overrides, environ={})
    with interruptible(), silent_stdout(as_json):
        with found.hold("lifecycle"):
            found.changed(settled)
        _say(f"run {found.run_id} in {found.home}: continuing")
        _check_before_start(settled, found.home)
        ending = _lifecycle(
            settled,
            config=found.config_file,
            overrides=list(overrides),
            run_id=found.run_id,
            home=found.home,
            resume=True,
        )
    conclude(ending, as_json=as_json)


def _check_before_start(config: "RunConfig", home: Path) -> None:
    from offbeat import doctor
    from offbeat.cli.prefect_server import check_given_api

    try:
        check_given_api()
        doctor.check_home(home)
        doctor.check_ports(config)
        doctor.check_device(config)
        doctor.check_workload(config, home)
        doctor.check_mlflow(config, home)
    except OffbeatError as error:
        if error.exit_code == NotReady.exit_code:
            raise
        raise NotReady(f"nothing was started: {error}") from error


def _lifecycle(
    settled: "RunConfig", *, config: Path, overrides: Sequence[str], run_id: str, home: Path, resume: bool
) -> Ending:
    # Prefect reads its settings at its import, children theirs at their start.
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    os.environ["OFFBEAT_HOME"] = str(home)
    try:
        report = _call_flow(settled, config=config, overrides=overrides, run_id=run_id, home=home, resume=resume)
    except (KeyboardInterrupt, OffbeatError) as error:
        if isinstance(error, OffbeatError) and error.exit_code != RunFailed.exit_code:
            raise
        return _unfinished(error, run_id=run_id, home=home)
    return Ending(report=_timed(report, run_id=run_id, home=home))


def _timed(report: Mapping[str, Any], *, run_id: str, home: Path) -> Mapping[str, Any]:
    """The report with the time of the whole command, of which the flow saw only a part; kept like this as well."""
    from offbeat.runs import Run

    timed = {**report, "wall_seconds": elapsed_s()}
    with suppress(OffbeatError):  # Where the disk has become full, the flow's own report stands.
        Run.open_record(run_id, home=home).write_report(timed)
    return timed


def _unfinished(error: KeyboardInterrupt | OffbeatError, *, run_id: str, home: Path) -> Ending:
    begun = (home / run_id / "run.yaml").is_file()
    hint = f"\nits state is kept; continue it with `offbeat resume {run_id}`" if begun else ""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, GateRejected):
        from offbeat.runs import Run

        report = Run.open_record(run_id, home=home).read_report() or {}
        return Ending(
            report=_timed(report, run_id=run_id, home=home),
            exit_code=GateRejected.exit_code,
            message=f"error: {message}",
        )
    status, code = "failed", 1
    if isinstance(error, KeyboardInterrupt | RunCancelled):
        status, code, message = "cancelled", INTERRUPTED, f"run {run_id} was stopped"
    report = unfinished_report(run_id, home, status=status, error=message, wall_seconds=elapsed_s())
    return Ending(report=report, exit_code=code, message=f"error: {message}{hint}")


def _call_flow(
    settled: "RunConfig", *, config: Path, overrides: Sequence[str], run_id: str, home: Path, resume: bool
) -> Mapping[str, Any]:
    if not os.environ.get("PREFECT_API_URL"):
        _say(f"Prefect  starting a server, its files in {home / 'prefect'}")
    import httpx
    from prefect.exceptions import PrefectException

    from offbeat.cli.prefect_server import prefect_api
    from offbeat.cli.progress import shown_progress

    try:
        with prefect_api(home, meanwhile=_flow) as api_url:
            _announce(settled, run_id=run_id, home=home, api_url=api_url)
            with shown_progress(run_id, home), errors_told_once():
                return _flow()(str(config), list(overrides), run_id=run_id, resume=resume)
    except (PrefectException, httpx.HTTPError) as error:
        raise RunFailed(f"run {run_id}: Prefect could not carry it through: {error}") from error


def _flow() -> Callable[..., Mapping[str, Any]]:
    # Seconds of imports, which pass while the Prefect server starts.
    from flows.lifecycle import run_lifecycle

    return run_lifecycle


def _announce(settled: "RunConfig", *, run_id: str, home: Path, api_url: str) -> None:
    from offbeat.registry import masked
    from offbeat.runs import Run

    run = Run(run_id=run_id, config=settled, home=home)
    lines = {
        "run": str(run.folder),
        "Prefect": f"{api_url.removesuffix('/api')}  ready",
        "MLflow": masked(run.tracking_uri),
    }
    for name, place in lines.items():
        _say(f"{name:<8} {place}")


def _say(line: str) -> None:
    click.echo(line, err=True)
