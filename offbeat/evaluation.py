"""Is a finished policy good enough? Score it on fixed seeds, compare it with the champion on the same seeds, decide.

checkpoint ──> evaluate_policy ────┐
                                   ├──> decide ──> Verdict (promote or not, and why)
registry  ──> evaluate_champion ───┘
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.config import RunConfig
from offbeat.config.models import EvaluationConfig
from offbeat.errors import CheckpointError, EvaluationError, RegistryError, RegistryUnavailable, WorkloadError
from offbeat.registry import ModelVersion, Registry
from offbeat.runs import Run
from offbeat.workloads import Policy, Scores, Workload, open_workload

NUM_RESAMPLES = 2_000
BOOTSTRAP_SEED = 0
MAX_INDICES = 1 << 22  # Of one block of resamples, so that 100,000 episodes do not ask for gigabytes.

# What makes two runs' returns comparable: the same environment, played in the same way.
ENVIRONMENT_KEYS = {"kind", "env_id", "env_fn", "env_kwargs", "frame_skip"}
# And two runs' scores: the same prompts, answered under the same rules.
PROMPT_KEYS = {
    "kind": True,
    "data": {"train", "validation", "arguments", "validation_share", "prompt_column", "system_prompt"},
    "sampling": {"stop", "max_new_tokens"},
}

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores in short. `ci_low` and `ci_high` bound the mean at the configured confidence."""

    name: str
    num_episodes: int
    mean: float
    std: float
    min: float
    max: float
    ci_low: float
    ci_high: float
    extras: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Challenger minus champion, seed by seed: the mean and its bootstrap interval."""

    mean: float
    ci_low: float
    ci_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The gate's answer. `reasons` are sentences with what was got and expected; `difference` needs a champion."""

    promote: bool
    reasons: tuple[str, ...]
    difference: Difference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionScores:
    """The champion on the run's seeds. `scores` is None without a usable champion, and `notes` then say why."""

    version: ModelVersion | None = None
    scores: Scores | None = None
    notes: tuple[str, ...] = ()


def evaluate_policy(run: Run, folder: Path) -> Scores:
    """Score the policy of a checkpoint folder on the run's evaluation seeds.

    Raises CheckpointError when it does not open, EvaluationError when it cannot be scored.
    """
    workload = open_workload(run.config, base=run.base)
    return _evaluate(workload, workload.load_policy(folder / "policy"), run.config.evaluation)


def evaluate_champion(run: Run, registry: Registry) -> ChampionScores:
    """Score the registered champion on the same seeds that `evaluate_policy` uses.

    A champion that does not load, cannot be scored or was trained for another environment counts as none, with a
    note: a broken model must not keep every later one out. Raises RegistryUnavailable, which is worth trying again.
    """
    version = registry.champion(run.config.model_name)
    if version is None:
        return ChampionScores()
    theirs, ours = version.tags.get("environment"), environment_of(run.config)
    if theirs not in (None, ours):
        return _unusable(version, f"it was trained for the environment {theirs}, this run is for {ours}")
    workload = open_workload(run.config, base=run.base)
    try:
        with tempfile.TemporaryDirectory(prefix="offbeat-champion-") as folder:
            policy = workload.load_policy(registry.download_policy(version, Path(folder)))
    except RegistryUnavailable:
        raise
    except (CheckpointError, WorkloadError, RegistryError) as error:
        return _unusable(version, f"it does not load: {error}")
    try:
        return ChampionScores(version=version, scores=_evaluate(workload, policy, run.config.evaluation))
    except EvaluationError as error:
        return _unusable(version, f"it cannot be scored: {error}")


def environment_of(config: RunConfig) -> str:
    """The environment as a model version's tag `environment`: equal text means comparable returns."""
    include: Any = ENVIRONMENT_KEYS if config.workload.kind == "control" else PROMPT_KEYS
    described = config.workload.model_dump(mode="json", include=include)
    if config.workload.kind == "language":
        described["evaluation"] = config.evaluation.model_dump(mode="json", include={"metric", "answer_column"})
    return json.dumps(described, sort_keys=True)


def summarise(scores: Scores, confidence: float) -> Evaluation:
    """Mean, spread and the mean's bootstrap interval; raises EvaluationError for scores that are not finite."""
    values = _checked(scores, "the policy")
    low, high = bootstrap_interval(values, confidence)
    return Evaluation(
        name=scores.name,
        num_episodes=len(values),
        mean=float(values.mean()),
        std=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        min=float(values.min()),
        max=float(values.max()),
        ci_low=low,
        ci_high=high,
        extras=dict(scores.extras),
    )


def bootstrap_interval(values: Array, confidence: float) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean (Efron 1979), from 2,000 resamples drawn with a fixed seed."""
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    rows = max(1, MAX_INDICES // len(values))
    means = np.concatenate(
        [
            values[generator.integers(0, len(values), size=(min(rows, NUM_RESAMPLES - done), len(values)))].mean(axis=1)
            for done in range(0, NUM_RESAMPLES, rows)
        ]
    )
    tail = (1 - confidence) / 2
    # Rounding can carry a mean of equal values a bit past them.
    low, high = np.clip(np.quantile(means, [tail, 1 - tail]), values.min(), values.max())
    return float(low), float(high)


def decide(
    challenger: Scores,
    champion: Scores | None,
    config: EvaluationConfig,
    *,
    failed_checks: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Verdict:
    """The promotion gate: every rule must hold, and every rule leaves its sentence.

    - No quality check has failed.
    - The mean reaches `min_return`, where one is set.
    - The mean of the differences from the champion, seed by seed, is at least `-tolerance`. With the default of 0 an
      equally good policy is promoted, so that two perfect ones do not make the newer a failure; a worse one is not.

    `notes` are passed on as reasons and decide nothing. Raises EvaluationError for scores that are not finite, or
    that belong to other seeds than the champion's.
    """
    values = _checked(challenger, "the challenger")
    outcomes = [(False, f"quality check failed: {check}") for check in failed_checks]
    if config.min_return is not None:
        outcomes.append(_threshold(challenger.name, float(values.mean()), config.min_return))
    difference = None
    if champion is None:
        outcomes.append((True, "no champion to compare with"))
    else:
        difference = _difference(challenger, champion, config.confidence)
        outcomes.append(_comparison(challenger.name, difference, len(values), config))
    return Verdict(
        promote=all(passed for passed, _ in outcomes),
        reasons=(*notes, *(sentence for _, sentence in outcomes)),
        difference=difference,
    )


def _evaluate(workload: Workload, policy: Policy, config: EvaluationConfig) -> Scores:
    scores = workload.evaluate(policy, num_episodes=config.episodes, seed=config.seed)
    _checked(scores, "the policy")
    return scores


def _unusable(version: ModelVersion, why: str) -> ChampionScores:
    note = f"champion {version.name} version {version.version} is not compared with: {why}"
    return ChampionScores(version=version, notes=(note,))


def _checked(scores: Scores, who: str) -> Array:
    values = np.asarray(scores.values, dtype=np.float64)
    if values.shape != (len(scores.seeds),) or not len(values):
        raise EvaluationError(
            f"{who}: got scores of shape {values.shape}, expected one for each of {len(scores.seeds)} seeds"
        )
    bad = [seed for seed, value in zip(scores.seeds, values, strict=True) if not np.isfinite(value)]
    if bad:
        raise EvaluationError(f"{who}: {len(bad)} of {len(values)} scores are NaN or infinite, first on seed {bad[0]}")
    return values


def _difference(challenger: Scores, champion: Scores, confidence: float) -> Difference:
    theirs = _checked(champion, "the champion")
    if list(challenger.seeds) != list(champion.seeds):
        raise EvaluationError(
            f"seeds differ: challenger {_span(challenger)}, champion {_span(champion)}; evaluate both on the same"
        )
    if challenger.name != champion.name:
        raise EvaluationError(
            f"scores differ in kind: the challenger has {challenger.name!r}, the champion {champion.name!r}"
        )
    differences = _checked(challenger, "the challenger") - theirs
    low, high = bootstrap_interval(differences, confidence)
    return Difference(mean=float(differences.mean()), ci_low=low, ci_high=high)


def _span(scores: Scores) -> str:
    return f"{len(scores.seeds)} seeds ({scores.seeds[0]} .. {scores.seeds[-1]})"


def _threshold(name: str, mean: float, minimum: float) -> tuple[bool, str]:
    passed = mean >= minimum
    return passed, f"mean {name} {mean:.6g} {'reaches' if passed else 'is below'} the threshold {minimum:.6g}"


def _comparison(name: str, difference: Difference, num_seeds: int, config: EvaluationConfig) -> tuple[bool, str]:
    passed = difference.mean >= -config.tolerance
    interval = f"{config.confidence:.6g} interval {difference.ci_low:+.6g} .. {difference.ci_high:+.6g}"
    against = f"champion on the same {num_seeds} seeds: mean difference {difference.mean:+.6g} in {name} ({interval})"
    return passed, f"{'not worse' if passed else 'worse'} than the {against}, at least {-config.tolerance:.6g} expected"
