"""A run's final account, as `report.json` and `offbeat run --json` show it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offbeat.evaluation import Evaluation
from offbeat.ledger import Account, Outcome, fates


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a run trained and how fresh its data was; latencies in milliseconds."""

    samples_per_second: float
    trajectories_per_second: float
    data_latency_p50_ms: float
    data_latency_p99_ms: float
    trainer_busy_ratio: float


def build_report(
    *,
    run_id: str,
    status: str,
    account: Account,
    speed: Speed | None,
    evaluation: Evaluation,
    checkpoint: Mapping[str, Any],
    model: Mapping[str, Any],
    wall_seconds: float,
    baseline: Mapping[str, float] | None = None,
    reasons: Sequence[str] = (),
) -> dict[str, Any]:
    """Every promised key; those of the speed are None for a run without steps."""
    return {
        "run_id": run_id,
        "status": status,
        "steps": account.steps,
        "policy_version": account.policy_version,
        **fates(account),
        "evaluation": {
            **evaluation_numbers(evaluation),
            **{f"baseline_{name}": value for name, value in (baseline or {}).items()},
        },
        "checkpoint": dict(checkpoint),
        "model": dict(model),
        "samples_per_second": speed and speed.samples_per_second,
        "trajectories_per_second": speed and speed.trajectories_per_second,
        "data_latency_p50_ms": speed and speed.data_latency_p50_ms,
        "data_latency_p99_ms": speed and speed.data_latency_p99_ms,
        "staleness_max": account.staleness_max,
        "trainer_busy_ratio": speed and speed.trainer_busy_ratio,
        "wall_seconds": wall_seconds,
        "reasons": list(reasons),
    }


def score_text(value: float) -> str:
    """A return or a score to read: 487.2, and 0.924 where all that counts is behind the point."""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def evaluation_numbers(evaluation: Evaluation) -> dict[str, float]:
    """An evaluation by name: `return_mean`, `return_std`, ..., and `episodes`."""
    names = ("mean", "std", "min", "max", "ci_low", "ci_high")
    return {f"{evaluation.name}_{name}": getattr(evaluation, name) for name in names} | {
        "episodes": evaluation.num_episodes,
        **evaluation.extras,
    }


def measure_speed(outcomes: Sequence[Outcome]) -> Speed | None:
    """Speed over all finished steps; None when there are none.

    Time is what steps, publishing and waiting between steps took; the wait before the first step is start-up, and
    the time that a run lay still between two lives is nobody's. The latency's p50 is the median over the steps' own
    p50, its p99 the 99th percentile over the steps' own p99: no step's bad moment is averaged away.
    """
    if not outcomes:
        return None
    busy = _column(outcomes, "step_s") + _column(outcomes, "publish_s")
    waits = _column(outcomes, "wait_s")
    waits[0] = 0.0
    seconds = max(1e-9, float(busy.sum() + waits.sum()))
    return Speed(
        samples_per_second=float(_column(outcomes, "samples").sum()) / seconds,
        trajectories_per_second=float(_column(outcomes, "trajectories").sum()) / seconds,
        data_latency_p50_ms=float(np.median(_column(outcomes, "data_latency_ms_p50"))),
        data_latency_p99_ms=float(np.percentile(_column(outcomes, "data_latency_ms_p99"), 99)),
        trainer_busy_ratio=float(busy.sum()) / seconds,
    )


def _column(outcomes: Sequence[Outcome], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([outcome.metrics.get(name, 0.0) for outcome in outcomes], dtype=np.float64)
