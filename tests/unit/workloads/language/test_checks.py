"""Recorded log-probs against the version that wrote them: when it is asked, and what it says is wrong."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offbeat.errors import LogprobMismatch
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.language.checks import LogprobCheck, score_tokens
from offbeat.workloads.language.columns import language_schema
from offbeat.workloads.language.policy import LanguagePolicy
from tests.unit.workloads.language.small_models import (
    make_base,
    make_batch,
    open_policy,
    reference_logprobs,
    run_config,
    sections,
)

PROMPTS = [[20, 21, 22], [30, 31, 32, 33]] * 2
LENGTH = 5


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> LanguagePolicy:
    return open_policy(make_base(tmp_path_factory.mktemp("base")), run_config())


class Asked:
    """A policy as the check asks it."""

    def __init__(self, policy: LanguagePolicy) -> None:
        self.weights, self.load_weights = policy.weights, policy.load_weights
        self.score = partial(score_tokens, policy, max_tokens=64)


def _check(*, every: int = 1, tolerance: float = 0.05, **sampling: Any) -> LogprobCheck:
    config = run_config(
        workload={"sampling": sampling}, algorithm={"logprob_tolerance": tolerance, "logprob_check_steps": every}
    )
    workload, algorithm = sections(config)
    return LogprobCheck(algorithm, workload.sampling)


@torch.no_grad()
def _likeliest(policy: LanguagePolicy, prompt: list[int]) -> list[int]:
    """The greedy completion, whose tokens stay within every top-k, top-p and min-p."""
    ids = torch.tensor([prompt])
    for _ in range(LENGTH):
        ids = torch.cat([ids, policy.model(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
    written: list[int] = ids[0, len(prompt) :].tolist()
    return written


def _batch(
    policy: LanguagePolicy, *, temperature: float = 1.0, shift: float = 0.0, version: int = 0
) -> TrajectoryBatch:
    """Greedy completions, recorded with log-probs of the bare model at a temperature, `shift` away from them."""
    written = [_likeliest(policy, prompt) for prompt in PROMPTS]
    logprobs = [
        (reference_logprobs(policy.model, prompt, ids, temperature) + shift).tolist()
        for prompt, ids in zip(PROMPTS, written, strict=True)
    ]
    batch = make_batch(PROMPTS, written, logprobs, [0.0, 1.0, 0.0, 1.0])
    columns = {name: batch.numpy(name) for name in ("min_version", "max_version", "finished_at_ns", "group_id")}
    columns |= {name: batch.numpy(name) for name in ("group_size", "prompt_index", "finish", "reward")}
    ragged = {"prompt_ids": PROMPTS, "completion_ids": written, "logprobs": logprobs}
    ragged |= {"token_versions": [[version] * LENGTH for _ in PROMPTS], "rewards": [[0.0]] * len(PROMPTS)}
    return TrajectoryBatch.from_arrays(language_schema(), {**columns, **ragged})


def _said(check: LogprobCheck, policy: LanguagePolicy, batch: TrajectoryBatch) -> str:
    with pytest.raises(LogprobMismatch) as caught:
        check(Asked(policy), batch, step=0, version=0)
    return str(caught.value)


def test_what_agrees_is_measured(policy: LanguagePolicy) -> None:
    measured = _check()(Asked(policy), _batch(policy), step=0, version=0)
    assert measured == {"logprob_difference": pytest.approx(0.0, abs=1e-5)}
    shifted = _check(tolerance=1.0)(Asked(policy), _batch(policy, shift=-0.25), step=0, version=0)
    assert shifted == {"logprob_difference": pytest.approx(0.25, abs=1e-5)}


@pytest.mark.parametrize(
    ("sampling", "recorded", "cause"),
    [
        ({"temperature": 0.25}, {}, "temperature: the tokens were sampled at 1"),
        ({"top_k": 2}, {}, "top-p, top-k or min-p: the recorded log-probs are those before the cut"),
        ({"min_p": 0.9}, {}, "top-p, top-k or min-p: the recorded log-probs are those before the cut"),
        ({"temperature": 0.25, "top_k": 2}, {}, "the recorded log-probs are those of the bare model"),
        ({}, {"shift": -0.2}, r"another number type (dtype)"),
        ({}, {"shift": -2.0}, "another chat template, tokenizer or model"),
        ({}, {"shift": float("nan")}, "another chat template, tokenizer or model"),
    ],
)
def test_the_message_names_the_likely_cause(
    policy: LanguagePolicy, sampling: dict[str, Any], recorded: dict[str, Any], cause: str
) -> None:
    said = _said(_check(**sampling), policy, _batch(policy, **recorded))
    assert cause in said
    assert "expected at most 0.05 (training.algorithm.logprob_tolerance)" in said


def test_a_version_without_rows_is_kept_until_a_batch_holds_some(tmp_path: Path) -> None:
    policy = open_policy(make_base(tmp_path), run_config())
    check, of_first = _check(every=10), _batch(policy, version=1)
    assert check(Asked(policy), _batch(policy, version=0), step=0, version=1) == {}
    with torch.no_grad():
        for parameter in policy.trained.values():
            parameter.mul_(1.5)  # The learner goes on.
    moved = policy.weights()
    assert check(Asked(policy), _batch(policy, version=0), step=1, version=2) == {}
    measured = check(Asked(policy), of_first, step=2, version=2)
    assert measured["logprob_difference"] == pytest.approx(0.0, abs=1e-5)
    assert all(torch.equal(moved[name], tensor) for name, tensor in policy.weights().items())
    assert check(Asked(policy), of_first, step=3, version=2) == {}, "one check an interval"


def test_rows_of_several_versions_are_left_out(policy: LanguagePolicy) -> None:
    batch = _batch(policy, shift=-1.0)
    versions = batch.ragged("token_versions")[0]
    assert isinstance(versions, np.ndarray)
    assert _check()(Asked(policy), batch, step=0, version=7) == {}
