"""The distribution that is sampled from, held to hand-made numbers and to transformers' own warpers."""

import math
from typing import Any

import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from offbeat.config.language import SamplingConfig
from offbeat.workloads.language.sampling import sample, sampling_logprobs

# Probabilities 0.5, 0.25, 0.125, 0.125 at temperature 1.
LOGITS = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()


def _probabilities(logits: torch.Tensor = LOGITS, **settings: Any) -> list[float]:
    return sampling_logprobs(logits, SamplingConfig(**settings)).exp()[0].tolist()


def test_without_settings_it_is_the_plain_softmax() -> None:
    assert _probabilities() == pytest.approx([0.5, 0.25, 0.125, 0.125])


def test_temperature_divides_the_logits() -> None:
    # Half the temperature squares the probabilities: 16 : 4 : 1 : 1 of 22.
    assert _probabilities(temperature=0.5) == pytest.approx([16 / 22, 4 / 22, 1 / 22, 1 / 22])


def test_top_k_keeps_the_likeliest_and_renormalises() -> None:
    assert _probabilities(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert _probabilities(top_k=1) == [1, 0, 0, 0]
    assert _probabilities(top_k=100) == pytest.approx([0.5, 0.25, 0.125, 0.125])


def test_top_p_keeps_the_fewest_that_reach_the_bound() -> None:
    assert _probabilities(top_p=0.7) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert _probabilities(top_p=0.5) == pytest.approx([1, 0, 0, 0])  # reached by the first exactly
    assert _probabilities(top_p=0.51) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert _probabilities(top_p=1e-6) == [1, 0, 0, 0]  # one is always kept


def test_min_p_is_relative_to_the_likeliest() -> None:
    assert _probabilities(min_p=0.3) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert _probabilities(min_p=1.0) == [1, 0, 0, 0]
    # After temperature 0.5 the second has 4/16 of the first, the others 1/16.
    assert _probabilities(min_p=0.2, temperature=0.5) == pytest.approx([16 / 20, 4 / 20, 0, 0])


def test_left_out_tokens_have_minus_infinity() -> None:
    assert sampling_logprobs(LOGITS, SamplingConfig(top_k=2))[0, 2:].tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
        {"temperature": 0.3, "top_k": 3, "top_p": 0.5, "min_p": 0.2},
    ],
)
def test_it_is_what_transformers_samples_from(settings: dict[str, Any]) -> None:
    logits = 3 * torch.randn(64, 40, generator=torch.Generator().manual_seed(5))
    config, ids = SamplingConfig(**settings), torch.zeros(64, 1, dtype=torch.int64)
    scores = TemperatureLogitsWarper(config.temperature)(ids, logits)
    if config.top_k:
        scores = TopKLogitsWarper(config.top_k)(ids, scores)
    if config.top_p < 1:
        scores = TopPLogitsWarper(config.top_p)(ids, scores)
    if config.min_p:
        scores = MinPLogitsWarper(config.min_p)(ids, scores)
    torch.testing.assert_close(sampling_logprobs(logits, config), scores.log_softmax(-1), rtol=1e-5, atol=1e-5)


def test_half_precision_logits_are_scored_in_float32() -> None:
    found = sampling_logprobs(LOGITS.bfloat16(), SamplingConfig(top_p=0.9))
    assert found.dtype == torch.float32
    assert found.exp().sum().item() == pytest.approx(1.0, abs=1e-6)


def test_tokens_come_as_often_as_their_probabilities_say() -> None:
    config = SamplingConfig(temperature=0.8, top_k=3)
    logprobs = sampling_logprobs(LOGITS.flip(-1) + torch.tensor([0.01, 0, 0, 0]), config)
    num = 40_000
    tokens = sample(logprobs.expand(num, -1), torch.Generator().manual_seed(7))
    expected = logprobs.exp()[0]
    for token in range(4):
        share, wanted = float((tokens == token).float().mean()), float(expected[token])
        # Four standard errors of a share.
        assert abs(share - wanted) <= 4 * math.sqrt(wanted * (1 - wanted) / num)


def test_the_same_seed_gives_the_same_tokens() -> None:
    logprobs = sampling_logprobs(LOGITS.expand(100, -1), SamplingConfig())
    first, again, other = (sample(logprobs, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()
