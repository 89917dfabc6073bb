"""The end of `offbeat run`: its report with every promised key, as JSON or as a summary to read."""

import atexit
import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from offbeat.cli.output import print_json, short_number
from offbeat.errors import OffbeatError

REPORT_KEYS = (
    "run_id",
    "status",
    "steps",
    "policy_version",
    "produced",
    "trained",
    "stale",
    "evicted",
    "quarantined",
    "pending",
    "evaluation",
    "checkpoint",
    "model",
    "samples_per_second",
    "trajectories_per_second",
    "data_latency_p50_ms",
    "data_latency_p99_ms",
    "staleness_max",
    "trainer_busy_ratio",
    "wall_seconds",
    "reasons",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended: its report, the exit code, and what to say on standard error."""

    report: Mapping[str, Any]
    exit_code: int = 0
    message: str = ""


def unfinished_report(run_id: str, home: Path, *, status: str, error: str, wall_seconds: float) -> dict[str, Any]:
    """The report of a run that did not come to its end, with the account as its log stands."""
    from offbeat.ledger import fates, read_account
    from offbeat.runs import Run

    known: dict[str, Any] = {}
    try:
        account = read_account(Run.open(run_id, home=home))
        known = {
            **fates(account),
            "steps": account.steps,
            "policy_version": account.policy_version,
            "staleness_max": account.staleness_max,
        }
    except OffbeatError:
        pass  # It ended before it had a folder, or its log is away: then there is no more to say.
    return {**known, "run_id": run_id, "status": status, "error": error, "wall_seconds": wall_seconds}


def conclude(ending: Ending, *, as_json: bool) -> None:
    """Print the ending and leave with its exit code."""
    if ending.message:
        click.echo(ending.message, err=True)
    if as_json:
        print_json({**dict.fromkeys(REPORT_KEYS), **ending.report})
    else:
        print_summary(ending.report)
    # The interpreter would look through every object of torch, MLflow and Prefect once more before it ends: seconds.
    atexit.register(gc.freeze)
    click.get_current_context().exit(ending.exit_code)


def print_summary(report: Mapping[str, Any]) -> None:
    """The report in a few aligned lines; what is not known has no line."""
    for name, text in _summary(report).items():
        if text:
            click.echo(f"{name:<14}{text}")


def _summary(report: Mapping[str, Any]) -> dict[str, str]:
    return {
        "run": f"{report.get('run_id')}  {report.get('status')}{_seconds(report.get('wall_seconds'))}",
        "steps": _filled("{steps}, policy version {policy_version}", report),
        "trajectories": _filled(
            "{produced} produced = {trained} trained + {stale} stale + {evicted} evicted + {quarantined} quarantined"
            " + {pending} pending",
            report,
        ),
        "speed": _speed(report),
        "latency": _filled("p50 {data_latency_p50_ms:.1f} ms, p99 {data_latency_p99_ms:.1f} ms", report),
        "evaluation": evaluation_text(report.get("evaluation")),
        "checkpoint": _checkpoint(report.get("checkpoint")),
        "model": _model(report.get("model")),
        "verdict": "; ".join(report.get("reasons") or ()),
    }


def evaluation_text(evaluation: Any) -> str:
    """`return 487.3 (482.0 to 491.1) over 100 episodes`: the mean and its confidence interval."""
    for key in evaluation or {}:
        if key.endswith("_mean"):
            name = key.removesuffix("_mean")
            interval = f" ({{{name}_ci_low}} to {{{name}_ci_high}}) over {{episodes}} episodes"
            before = f", version 0: {{baseline_{key}}}"
            return "".join(_filled(text, _read(evaluation)) for text in (f"{name} {{{key}}}", interval, before))
    return ""


def _read(numbers: Mapping[str, Any]) -> dict[str, Any]:
    from offbeat.lifecycle.report import score_text

    return {name: score_text(value) if isinstance(value, float) else value for name, value in numbers.items()}


def _filled(pattern: str, values: Mapping[str, Any]) -> str:
    try:
        return pattern.format_map(values)
    except (KeyError, TypeError, ValueError):  # A number that is missing or None: no line.
        return ""


def _seconds(value: Any) -> str:
    return "" if value is None else f" in {value:.1f} s"


def _speed(report: Mapping[str, Any]) -> str:
    rate = report.get("samples_per_second")
    if rate is None:
        return ""
    return f"{short_number(rate)} samples/s" + _filled(
        ", trainer busy {trainer_busy_ratio:.0%}, staleness at most {staleness_max}", report
    )


def _checkpoint(checkpoint: Any) -> str:
    if not checkpoint:
        return ""
    return f"{checkpoint.get('uri')}  {'verified' if checkpoint.get('md5_ok') else 'DAMAGED'}"


def _model(model: Any) -> str:
    if not model or model.get("version") is None:
        return ""
    return f"{model.get('name')} version {model['version']}" + (f" is {model['alias']}" if model.get("alias") else "")
