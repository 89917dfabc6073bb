"""Off-policy: recorded log-probs change the loss as the formulas of the corrections say, worked out here."""

import copy
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offbeat.workloads.language.batches import completions_of
from offbeat.workloads.language.learner import LanguageLearner
from tests.unit.workloads.language.small_models import (
    make_base,
    make_batch,
    open_policy,
    reference_logprobs,
    run_config,
    sections,
)

PROMPTS = [[20, 21, 22]] * 4 + [[30, 31, 32, 33, 34, 35]] * 4
WRITTEN = [[40], [41, 42, 43], [44, 45], [46, 47, 48, 49, 50], [51, 52], [53, 54, 55, 56], [57], [58, 59, 60]]
REWARDS = [0.0, 1.0, 0.0, 2.0, 1.0, 0.0, 0.0, 1.0]
# How far the learner's log-probs lie above the recorded ones: ratios from 0.67 to 2.7.
SHIFTS = [0.5, 0.1, -0.4, 0.35, -0.1, 1.0, 0.0, -0.3]
LOW, HIGH, TRUNCATION = 0.2, 0.28, 1.5
CORRECTIONS = ("none", "clip", "truncated_token", "truncated_sequence", "decoupled")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Relative positions, and absolute ones, which padding must not move."""
    return make_base(tmp_path_factory.mktemp("base"), request.param)


def _advantages() -> list[float]:
    """(r - mean) / (std + 1e-4) of the two groups: means 0.75 and 0.5, variances 11/12 and 1/3."""
    upper, lower = math.sqrt(11 / 12) + 1e-4, math.sqrt(1 / 3) + 1e-4
    return [(r - 0.75) / upper for r in REWARDS[:4]] + [(r - 0.5) / lower for r in REWARDS[4:]]


def _learner(base: Path, **algorithm: Any) -> LanguageLearner:
    config = run_config(algorithm={"truncation": TRUNCATION, **algorithm})
    return LanguageLearner(config, *sections(config), open_policy(base, config))


@functools.cache
def _base_logprobs(base: Path) -> list[torch.Tensor]:
    model = open_policy(base, run_config()).model
    return [reference_logprobs(model, prompt, ids) for prompt, ids in zip(PROMPTS, WRITTEN, strict=True)]


def _step(learner: LanguageLearner, base: Path, shifts: Sequence[float]) -> dict[str, float]:
    rows = zip(_base_logprobs(base), shifts, strict=True)
    recorded = [(logprobs - shift).tolist() for logprobs, shift in rows]
    return learner.step(make_batch(PROMPTS, WRITTEN, recorded, REWARDS), seed=0)


def _by_hand(correction: str, ratio: str) -> tuple[list[list[float]], float]:
    """Loss of every token at the first update, and the share of clipped ratios."""
    losses, clipped, counted = [], 0, 0
    for ids, shift, advantage in zip(WRITTEN, SHIFTS, _advantages(), strict=True):
        weight, policy_ratio = 1.0, 1.0
        if correction == "clip":
            policy_ratio = math.exp(shift)  # The mean over a sequence of equal shifts is the shift.
        elif correction == "decoupled":
            weight = math.exp(shift)
        elif correction == "truncated_token":
            weight = min(math.exp(shift), TRUNCATION)
        elif correction == "truncated_sequence":
            weight = min(math.exp(shift * len(ids)), TRUNCATION)
        bounded = min(max(policy_ratio, 1 - LOW), 1 + HIGH)
        losses.append([-weight * min(policy_ratio * advantage, bounded * advantage)] * len(ids))
        outside = (policy_ratio < 1 - LOW and advantage < 0) or (policy_ratio > 1 + HIGH and advantage > 0)
        counted += 1 if ratio == "sequence" else len(ids)
        clipped += (1 if ratio == "sequence" else len(ids)) * outside
    return losses, clipped / counted


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_loss_and_clip_fraction_are_those_worked_out_by_hand(base: Path, correction: str, ratio: str) -> None:
    losses, clip_fraction = _by_hand(correction, ratio)
    flat = np.concatenate(losses)
    expected = {
        "dapo": flat.sum() / flat.size,
        "bnpo": flat.sum() / flat.size,
        "grpo": np.mean([np.mean(row) for row in losses]),
        "dr_grpo": flat.sum() / (len(losses) * 128),  # of max_new_tokens
    }
    for tokens, (loss, value) in zip((1000, 16, 16, 64), expected.items(), strict=True):
        learner = _learner(base, correction=correction, ratio=ratio, loss=loss, micro_batch_tokens=tokens)
        metrics = _step(learner, base, SHIFTS)
        assert metrics["training_loss"] == pytest.approx(value, rel=1e-4, abs=1e-6), loss
        assert metrics["clip_fraction"] == pytest.approx(clip_fraction), loss
    assert (clip_fraction > 0) == (correction == "clip")


def _plain_loss(model: Any, base_model: Any, correction: str, *, kl_coef: float) -> torch.Tensor:
    """The same in float64 on one unpadded sequence after the other, so that autograd gives the gradient."""
    total = torch.zeros((), dtype=torch.float64)
    for prompt, ids, shift, advantage in zip(PROMPTS, WRITTEN, SHIFTS, _advantages(), strict=True):
        logprobs = _double_logprobs(model, prompt, ids)
        behaviour = logprobs.detach() - shift
        proximal, weight = logprobs.detach(), (logprobs.detach() - behaviour).exp()
        if correction == "truncated_token":
            weight = weight.clamp(max=TRUNCATION)
        elif correction == "truncated_sequence":
            weight = (logprobs.detach() - behaviour).sum().exp().clamp(max=TRUNCATION)
        elif correction in ("none", "clip"):
            proximal, weight = (behaviour if correction == "clip" else proximal), torch.ones(())
        ratio = (logprobs - proximal).exp()
        token_loss = -weight * torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
        divergence = _double_logprobs(base_model, prompt, ids).detach() - logprobs
        total = total + (token_loss + kl_coef * (divergence.exp() - divergence - 1)).sum()
    return total / sum(map(len, WRITTEN))


def _double_logprobs(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    found: torch.Tensor = logits.log_softmax(-1).gather(-1, torch.tensor(ids).unsqueeze(-1)).squeeze(-1)
    return found


@pytest.mark.parametrize("kl_coef", [0.0, 0.5])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_the_gradient_is_that_of_the_formula(either: Path, correction: str, kl_coef: float) -> None:
    learner = _learner(either, correction=correction, kl_coef=kl_coef, micro_batch_tokens=32)
    plain = open_policy(either, run_config()).model.double()
    _step(learner, either, SHIFTS)
    _plain_loss(plain, copy.deepcopy(plain), correction, kl_coef=kl_coef).backward()  # type: ignore[no-untyped-call]
    for name, parameter in plain.named_parameters():
        ours = learner._policy.trained[name].grad
        assert ours is not None
        bound = 1e-4 * float(parameter.grad.abs().max())
        assert float((ours - parameter.grad).abs().max()) <= bound, name


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_recorded_logprobs_matter_unless_nothing_is_corrected(base: Path, correction: str) -> None:
    on, off = _learner(base, correction=correction), _learner(base, correction=correction)
    _step(on, base, [0.0] * 8)
    _step(off, base, SHIFTS)
    assert (on.digest() == off.digest()) == (correction == "none")


@pytest.mark.parametrize("correction", ["none", "clip", "decoupled", "truncated_token"])
def test_the_second_epoch_compares_with_the_policy_that_its_correction_names(base: Path, correction: str) -> None:
    shift = 0.1
    one = _learner(base, correction=correction)
    first_loss = _step(one, base, [shift] * 8)["training_loss"]
    start = open_policy(base, run_config()).model
    expected = 0.0
    for prompt, ids, advantage in zip(PROMPTS, WRITTEN, _advantages(), strict=True):
        moved = reference_logprobs(one._policy.model, prompt, ids).numpy()
        before = reference_logprobs(start, prompt, ids).numpy()
        ratio = {"none": np.ones(len(ids)), "clip": np.exp(moved - before + shift)}.get(
            correction, np.exp(moved - before)
        )
        weight = 1.0 if correction in ("none", "clip") else math.exp(shift)
        bounded = np.clip(ratio, 1 - LOW, 1 + HIGH)
        expected -= float((weight * np.minimum(ratio * advantage, bounded * advantage)).sum())
    second_loss = expected / sum(map(len, WRITTEN))
    two = _learner(base, correction=correction, epochs=2)
    found = _step(two, base, [shift] * 8)["training_loss"]
    assert found == pytest.approx((first_loss + second_loss) / 2, rel=1e-3, abs=1e-5)


def test_recorded_logprobs_under_another_temperature_are_compared_at_that_temperature(base: Path) -> None:
    config = run_config(workload={"sampling": {"temperature": 0.5}})
    learner = LanguageLearner(config, *sections(config), open_policy(base, config))
    model = open_policy(base, run_config()).model
    recorded = [reference_logprobs(model, p, w, 0.5).tolist() for p, w in zip(PROMPTS, WRITTEN, strict=True)]
    metrics = learner.step(make_batch(PROMPTS, WRITTEN, recorded, REWARDS), seed=0)
    assert metrics["clip_fraction"] == 0
    weights = list(map(len, WRITTEN))
    expected = -float(np.average(_advantages(), weights=weights))
    assert metrics["training_loss"] == pytest.approx(expected, rel=1e-4)


def test_scores_are_those_of_a_plain_forward_pass(either: Path) -> None:
    learner = _learner(either, micro_batch_tokens=16)
    batch = make_batch(PROMPTS, WRITTEN, [[0.0] * len(ids) for ids in WRITTEN], REWARDS)
    found = learner._updater.score(completions_of(batch, torch.zeros(8)))
    for prompt, ids, scored in zip(PROMPTS, WRITTEN, found, strict=True):
        expected = reference_logprobs(learner._policy.model, prompt, ids).float()
        torch.testing.assert_close(scored, expected, rtol=1e-4, atol=1e-5)
