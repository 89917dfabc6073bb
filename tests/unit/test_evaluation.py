import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from offbeat import evaluation
from offbeat.config import RunConfig, parse_config
from offbeat.config.models import EvaluationConfig
from offbeat.errors import CheckpointError, EvaluationError, RegistryError, RegistryUnavailable, WorkloadError
from offbeat.evaluation import (
    bootstrap_interval,
    decide,
    environment_of,
    evaluate_champion,
    evaluate_policy,
    summarise,
)
from offbeat.registry import ModelVersion, Registry
from offbeat.runs import Run
from offbeat.workloads import Scores


def scores(values: list[float], *, first_seed: int = 10_000, name: str = "return") -> Scores:
    return Scores(name=name, seeds=range(first_seed, first_seed + len(values)), values=np.array(values))


def gate(**keys: Any) -> EvaluationConfig:
    return EvaluationConfig(**keys)


class FakePolicy:
    def __init__(self, value: float) -> None:
        self.value = value

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        raise NotImplementedError


class FakeWorkload:
    """Each seed's score is the policy's number plus the seed; the number is read from `value.txt`."""

    def load_policy(self, folder: Path) -> FakePolicy:
        file = folder / "value.txt"
        if not file.is_file():
            raise CheckpointError(f"no policy in {folder}")
        if file.read_text() == "other shape":
            raise WorkloadError("weights of another shape")
        return FakePolicy(float(file.read_text()))

    def evaluate(self, policy: FakePolicy, *, num_episodes: int, seed: int) -> Scores:
        return scores([policy.value + seed + at for at in range(num_episodes)], first_seed=seed)


class FakeRegistry:
    def __init__(self, version: ModelVersion | None, files: Mapping[str, str], error: Exception | None = None) -> None:
        self.version, self.files, self.error = version, files, error

    def champion(self, name: str) -> ModelVersion | None:
        assert name == "demo"
        return self.version

    def download_policy(self, version: ModelVersion, folder: Path) -> Path:
        if self.error:
            raise self.error
        for name, text in self.files.items():
            (folder / name).write_text(text)
        return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(evaluation, "open_workload", lambda config, base: FakeWorkload())
    config = parse_config({"name": "demo", "evaluation": {"episodes": 3, "seed": 7}})
    return Run(run_id="demo-1", config=config, home=tmp_path)


def champion_of(run: Run, *, tags: Mapping[str, str] | None = None, **registry: Any) -> evaluation.ChampionScores:
    version = ModelVersion(name="demo", version=4, uri="models:/demo/4", tags=tags or {})
    return evaluate_champion(run, cast(Registry, FakeRegistry(version, **registry)))


def test_a_policy_is_scored_on_the_configured_seeds(run: Run, tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "value.txt").write_text("100")
    found = evaluate_policy(run, tmp_path)
    assert list(found.seeds) == [7, 8, 9]
    assert found.values.tolist() == [107, 108, 109]


def test_a_policy_that_scores_nan_cannot_be_scored(run: Run, tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "value.txt").write_text("nan")
    with pytest.raises(EvaluationError, match="3 of 3 scores are NaN or infinite, first on seed 7"):
        evaluate_policy(run, tmp_path)


def test_summary_of_four_scores_by_hand() -> None:
    # Mean of 1, 2, 3, 6 is 3; squared distances 4, 1, 0, 9 sum to 14, and 14 / 3 is the variance.
    found = summarise(scores([1, 2, 3, 6]), 0.95)
    assert (found.name, found.num_episodes, found.mean, found.min, found.max) == ("return", 4, 3.0, 1.0, 6.0)
    assert found.std == pytest.approx((14 / 3) ** 0.5)
    assert 1 <= found.ci_low < 3 < found.ci_high <= 6


def test_interval_of_a_constant_is_the_constant() -> None:
    found = summarise(scores([0.1] * 7), 0.95)
    assert (found.ci_low, found.ci_high) == (0.1, 0.1)


def test_one_episode_has_no_spread() -> None:
    found = summarise(scores([5.0]), 0.95)
    assert (found.std, found.ci_low, found.ci_high) == (0.0, 5.0, 5.0)


def test_interval_of_a_coin_is_the_binomial_quantile() -> None:
    # The mean of 100 resampled 0/1 values is Binomial(100, 1/2) / 100: quantiles 0.40 and 0.60 at 95 %.
    low, high = bootstrap_interval(np.array([0.0, 1.0] * 50), 0.95)
    assert low == pytest.approx(0.40, abs=0.011)
    assert high == pytest.approx(0.60, abs=0.011)


def test_interval_repeats_itself_and_narrows_with_less_confidence() -> None:
    values = np.arange(50.0)
    wide, narrow = bootstrap_interval(values, 0.99), bootstrap_interval(values, 0.8)
    assert bootstrap_interval(values, 0.99) == wide
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_blocks_of_resamples_cover_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAX_INDICES", 100 * 7)  # Seven resamples a block; 2,000 is no multiple of 7.
    low, high = bootstrap_interval(np.array([0.0, 1.0] * 50), 0.95)
    assert (low, high) == pytest.approx((0.40, 0.60), abs=0.011)


@pytest.mark.parametrize("bad", [[1.0, float("nan")], [float("inf"), 1.0]])
def test_scores_that_are_not_finite_are_refused(bad: list[float]) -> None:
    with pytest.raises(EvaluationError, match="NaN or infinite"):
        summarise(scores(bad), 0.95)
    with pytest.raises(EvaluationError, match="the challenger: 1 of 2"):
        decide(scores(bad), None, gate())
    with pytest.raises(EvaluationError, match="the champion: 1 of 2"):
        decide(scores([1.0, 2.0]), scores(bad), gate())


def test_no_scores_are_refused() -> None:
    with pytest.raises(EvaluationError, match="expected one for each of 0 seeds"):
        summarise(scores([]), 0.95)


def test_first_version_is_promoted_without_champion_and_threshold() -> None:
    verdict = decide(scores([1.0, 2.0]), None, gate())
    assert verdict.promote
    assert verdict.reasons == ("no champion to compare with",)
    assert verdict.difference is None


@pytest.mark.parametrize(
    ("minimum", "promote", "sentence"),
    [
        (475.0, True, "mean return 475 reaches the threshold 475"),
        (475.5, False, "mean return 475 is below the threshold 475.5"),
    ],
)
def test_threshold_decides(minimum: float, promote: bool, sentence: str) -> None:
    verdict = decide(scores([450.0, 500.0]), None, gate(min_return=minimum))
    assert verdict.promote is promote
    assert verdict.reasons[0] == sentence


def test_differences_are_taken_seed_by_seed() -> None:
    # Each seed differs by exactly 1, though the seeds themselves are far apart: no spread in the differences.
    verdict = decide(scores([11.0, 101.0, 1001.0]), scores([10.0, 100.0, 1000.0]), gate())
    assert verdict.promote
    assert verdict.difference == evaluation.Difference(mean=1.0, ci_low=1.0, ci_high=1.0)


def test_an_equally_perfect_policy_is_promoted() -> None:
    verdict = decide(scores([500.0] * 100), scores([500.0] * 100), gate(min_return=475))
    assert verdict.promote
    assert verdict.reasons[1].startswith("not worse than the champion on the same 100 seeds: mean difference +0 ")


@pytest.mark.parametrize(("tolerance", "promote"), [(0.0, False), (1.9, False), (2.0, True)])
def test_a_worse_policy_needs_tolerance(tolerance: float, promote: bool) -> None:
    verdict = decide(scores([8.0, 8.0]), scores([9.0, 11.0]), gate(tolerance=tolerance))
    assert verdict.promote is promote
    assert "mean difference -2 in return" in verdict.reasons[0]
    assert f"at least {-tolerance:.6g} expected" in verdict.reasons[0]


def test_failed_check_blocks_promotion_whatever_the_scores() -> None:
    verdict = decide(scores([500.0]), None, gate(min_return=1), failed_checks=["rewards are not finite"])
    assert not verdict.promote
    assert verdict.reasons[0] == "quality check failed: rewards are not finite"


def test_every_rule_leaves_its_sentence() -> None:
    verdict = decide(scores([1.0]), scores([2.0]), gate(min_return=3), failed_checks=["a", "b"], notes=["by the way"])
    assert not verdict.promote
    assert [reason.split(" ")[0] for reason in verdict.reasons] == ["by", "quality", "quality", "mean", "worse"]


def test_notes_decide_nothing() -> None:
    assert decide(scores([1.0]), None, gate(), notes=["the champion does not load"]).promote


def test_other_seeds_or_another_kind_of_score_are_refused() -> None:
    with pytest.raises(EvaluationError, match=r"challenger 2 seeds \(5 \.\. 6\), champion 2 seeds \(6 \.\. 7\)"):
        decide(scores([1.0, 2.0], first_seed=5), scores([1.0, 2.0], first_seed=6), gate())
    with pytest.raises(EvaluationError, match="'return', the champion 'accuracy'"):
        decide(scores([1.0]), scores([1.0], name="accuracy"), gate())


def test_without_champion_there_is_nothing_to_score(run: Run) -> None:
    found = evaluate_champion(run, cast(Registry, FakeRegistry(None, {})))
    assert found == evaluation.ChampionScores()


def test_champion_is_scored_on_the_same_seeds(run: Run) -> None:
    found = champion_of(run, tags={"environment": environment_of(run.config)}, files={"value.txt": "100"})
    assert found.notes == ()
    assert found.scores is not None
    assert list(found.scores.seeds) == [7, 8, 9]


@pytest.mark.parametrize(
    ("registry", "why"),
    [
        ({"files": {}}, "it does not load: no policy in"),
        ({"files": {"value.txt": "other shape"}}, "it does not load: weights of another shape"),
        ({"files": {}, "error": RegistryError("its files are gone")}, "it does not load: its files are gone"),
        ({"files": {"value.txt": "nan"}}, "it cannot be scored: the policy: 3 of 3 scores"),
    ],
)
def test_a_broken_champion_blocks_nothing_and_is_named(run: Run, registry: dict[str, Any], why: str) -> None:
    found = champion_of(run, **registry)
    assert found.scores is None
    assert found.notes[0].startswith(f"champion demo version 4 is not compared with: {why}")
    assert decide(scores([1.0]), found.scores, run.config.evaluation, notes=found.notes).promote


def test_a_champion_of_another_environment_is_not_compared_with(run: Run) -> None:
    other = environment_of(parse_config({"workload": {"env_id": "Acrobot-v1"}}))
    found = champion_of(run, tags={"environment": other}, files={"value.txt": "100"})
    assert found.scores is None
    assert "Acrobot-v1" in found.notes[0]
    assert "CartPole-v1" in found.notes[0]


def test_a_registry_that_is_away_is_not_a_broken_champion(run: Run) -> None:
    with pytest.raises(RegistryUnavailable):
        champion_of(run, files={}, error=RegistryUnavailable("no answer"))


def test_environment_names_what_changes_returns_and_nothing_else() -> None:
    plain = json.loads(environment_of(RunConfig()))
    assert plain == {"kind": "control", "env_id": "CartPole-v1", "env_fn": None, "env_kwargs": {}, "frame_skip": 1}
    assert environment_of(parse_config({"workload": {"num_envs": 8}})) == environment_of(RunConfig())
    assert environment_of(parse_config({"workload": {"frame_skip": 2}})) != environment_of(RunConfig())
