"""Evaluation of a language model: one greedy completion per validation prompt, and sampled ones for pass@k.

The evaluation's seed draws the prompts, the same for every policy, so that two policies compare prompt by prompt.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from offbeat.config import RunConfig
from offbeat.config.language import LanguageConfig
from offbeat.errors import EvaluationError
from offbeat.rewards import BUILT_IN, RewardCombiner, RewardProcess
from offbeat.rewards.built_in import text_of
from offbeat.workloads.base import Scores
from offbeat.workloads.language.engine import Request, TransformersEngine
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.prompts import Messages, Prompt, columns_of, completions_as_given, plain_conversation

MAX_SAMPLES = 16  # Completions that are kept to be looked at.
MAX_TEXT = 500
TEXT_METRICS = ("accuracy", "exact_match", "bleu", "chrf")  # against a reference; the reward needs none

Array = np.ndarray[Any, np.dtype[np.float64]]


def choose_prompts(prompts: Sequence[Prompt], *, num_prompts: int, seed: int) -> list[Prompt]:
    """At most `num_prompts` of them, drawn by the seed, in the data's order."""
    chosen = np.random.default_rng(seed).permutation(len(prompts))[:num_prompts]
    return [prompts[place] for place in sorted(chosen.tolist())]


def evaluate_prompts(
    config: RunConfig,
    workload: LanguageConfig,
    policy: LanguagePolicy,
    prompts: Sequence[Prompt],
    *,
    rewards: RewardProcess,
    combine: RewardCombiner,
    seed: int,
) -> Scores:
    """The configured metric of each prompt; extras: the other metrics, the mean reward, pass@k, and the mean length.

    Raises EvaluationError where the metric needs a reference answer that a prompt lacks.
    """
    metric = config.evaluation.metric
    greedy = complete(workload, policy, prompts, seed=seed, greedy=True)
    texts = completions_as_given(policy.tokenizer, prompts, greedy)
    answers = [prompt.columns.get(config.evaluation.answer_column) for prompt in prompts]
    scored = (
        {name: _scored(name, texts, answers) for name in TEXT_METRICS} if all(a is not None for a in answers) else {}
    )
    table = rewards.score(
        prompts=[prompt.given for prompt in prompts],
        completions=texts,
        completion_ids=greedy,
        columns=columns_of(prompts),
    )
    scored["reward"] = combine(table.values)
    if metric not in scored:
        missing = sum(answer is None for answer in answers)
        raise EvaluationError(
            f"evaluation.metric {metric!r} compares with {config.evaluation.answer_column!r},"
            f" which {missing} of {len(prompts)} validation prompts lack"
        )
    extras = {
        f"{name}_mean": float(np.nanmean(values))
        for name, values in scored.items()
        if name != metric and not np.isnan(values).all()
    }
    extras["completion_length_mean"] = float(np.mean([len(ids) for ids in greedy]))
    extras |= _pass_at_k(config, workload, policy, prompts, answers, seed=seed)
    return Scores(
        name=metric,
        seeds=[prompt.index for prompt in prompts],
        values=scored[metric],
        extras=extras,
        samples=_samples(prompts, texts, answers, scored[metric]),
    )


def complete(
    workload: LanguageConfig, policy: LanguagePolicy, prompts: Sequence[Prompt], *, seed: int, greedy: bool
) -> list[list[int]]:
    """Token ids of one completion per prompt, in the prompts' order."""
    generator = torch.Generator().manual_seed(seed)
    engine = TransformersEngine(
        workload.sampling, num_sequences=workload.num_sequences, generator=generator, greedy=greedy
    )
    engine.submit([Request(key=place, ids=prompt.ids) for place, prompt in enumerate(prompts)])
    found: dict[int, list[int]] = {}
    while engine.num_open:
        found |= {completion.key: completion.ids for completion in engine.advance(policy, 0)}
    return [found[place] for place in range(len(prompts))]


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Chance that at least one of k samples is right: 1 - C(n - c, k) / C(n, k) (Chen 2021, eq. 1)."""
    if num_samples - num_right < k:
        return 1.0
    return 1 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def _pass_at_k(
    config: RunConfig,
    workload: LanguageConfig,
    policy: LanguagePolicy,
    prompts: Sequence[Prompt],
    answers: Sequence[Any],
    *,
    seed: int,
) -> dict[str, float]:
    """pass@1, pass@2, pass@4, ... of sampled completions, by accuracy."""
    count = config.evaluation.samples
    if count < 2 or any(answer is None for answer in answers):
        return {}
    repeated = [prompt for prompt in prompts for _ in range(count)]
    ids = complete(workload, policy, repeated, seed=seed, greedy=False)
    references = [answer for answer in answers for _ in range(count)]
    right = _scored("accuracy", completions_as_given(policy.tokenizer, repeated, ids), references)
    right = right.reshape(-1, count).sum(1).astype(int)
    powers = [1 << power for power in range(count.bit_length()) if 1 << power <= count]
    return {f"pass_at_{k}": float(np.mean([pass_at_k(count, int(c), k) for c in right])) for k in powers}


def _scored(name: str, completions: Sequence[str | Messages], answers: Sequence[Any]) -> Array:
    return np.asarray(BUILT_IN[name](completions=completions, answer=answers), dtype=np.float64)


def _samples(
    prompts: Sequence[Prompt], texts: Sequence[str | Messages], answers: Sequence[Any], values: Array
) -> list[dict[str, str]]:
    return [
        {
            "prompt": _short(prompt.given if isinstance(prompt.given, str) else plain_conversation(prompt.given)),
            "completion": _short(text_of(text)),
            "answer": _short(answer),
            "score": f"{value:.3g}",
        }
        for prompt, text, answer, value in list(zip(prompts, texts, answers, values, strict=True))[:MAX_SAMPLES]
    ]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    # Databases behind Prefect and MLflow refuse the zero character, and JSON a lone surrogate.
    text = text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
