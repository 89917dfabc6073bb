"""Do the recorded log-probs agree with the model that wrote the tokens? The check of everything that lies between.

    rows of one version ──> scored anew by that version's parameters, through the sampler's own distribution
                            ──> mean |difference| ──> a metric; beyond the tolerance the run stops

A wrong temperature, another chat template or tokenizer, or a generator in another number type would not stop anything
by itself: it would only make every importance weight wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from offbeat.config.language import GrpoConfig, SamplingConfig
from offbeat.errors import LogprobMismatch
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.base import Weights
from offbeat.workloads.language.batches import Completions, completions_of, micro_batches, rows_of
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.sampling import sampling_logprobs

ROWS = 32  # Scored per check: enough for a mean, cheap beside a step.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    version: int
    weights: Mapping[str, Tensor]


class Scorable(Protocol):
    """A policy that can be asked, and for a moment be another version of itself."""

    def weights(self) -> Weights:
        """Its parameters, as clones."""

    def load_weights(self, weights: Weights) -> None:
        """Take over parameters."""

    def score(self, rows: Completions, sampling: SamplingConfig) -> Sequence[np.ndarray[Any, Any]]:
        """Log-probs of the written tokens, row by row, under the distribution that the sampler draws from."""


class LogprobCheck:
    """Checks at the first step and then every `logprob_check_steps`; owned by a learner.

    Where a batch holds nothing that the present version wrote, its parameters are kept until a later batch does.
    """

    def __init__(self, algorithm: GrpoConfig, sampling: SamplingConfig) -> None:
        self._algorithm, self._sampling = algorithm, sampling
        self._waiting: _Snapshot | None = None

    def __call__(self, policy: Scorable, batch: TrajectoryBatch, *, step: int, version: int) -> dict[str, float]:
        """`logprob_difference` where this step had something to check; raises LogprobMismatch beyond the tolerance."""
        if step % self._algorithm.logprob_check_steps == 0:
            self._waiting = None
            if rows := _rows_of_version(batch, version)[:ROWS]:
                return {"logprob_difference": self._checked(policy, batch, rows)}
            # Copied only now: the parameters of a large model are not copied to be looked at once.
            self._waiting = _Snapshot(version=version, weights=policy.weights())
        waiting = self._waiting
        if waiting is None or not (rows := _rows_of_version(batch, waiting.version)[:ROWS]):
            return {}
        self._waiting = None
        present = policy.weights()
        policy.load_weights(waiting.weights)
        try:
            return {"logprob_difference": self._checked(policy, batch, rows)}
        finally:
            policy.load_weights(present)

    def _checked(self, policy: Scorable, batch: TrajectoryBatch, rows: Sequence[int]) -> float:
        completions = completions_of(batch, torch.zeros(len(batch))).select(rows)
        difference = self._difference(policy, completions, self._sampling)
        if difference > self._algorithm.logprob_tolerance:
            raise LogprobMismatch(
                f"recorded log-probs differ by {difference:.3g} on average from those of the version that wrote them,"
                f" expected at most {self._algorithm.logprob_tolerance:g} (training.algorithm.logprob_tolerance);"
                f" {self._likely_cause(policy, completions, difference)}"
            )
        return difference

    def _difference(self, policy: Scorable, rows: Completions, sampling: SamplingConfig) -> float:
        found = policy.score(rows, sampling)
        gaps = [np.abs(recorded - scored) for recorded, scored in zip(rows.logprobs, found, strict=True)]
        total = np.concatenate(gaps) if gaps else np.zeros(0)
        return float(np.nan_to_num(total, nan=np.inf, posinf=np.inf).mean()) if total.size else 0.0

    def _likely_cause(self, policy: Scorable, rows: Completions, difference: float) -> str:
        """What to look at first: whichever change of the sampler's settings explains the difference, if one does."""
        plain = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
        others = {
            "temperature: the tokens were sampled at 1": {"temperature": 1.0},
            "top-p, top-k or min-p: the recorded log-probs are those before the cut": plain,
            "temperature, top-p, top-k, min-p: the recorded log-probs are those of the bare model": {
                "temperature": 1.0,
                **plain,
            },
        }
        for cause, update in others.items():
            changed = self._sampling.model_copy(update=update)
            if changed != self._sampling and self._difference(policy, rows, changed) < difference / 10:
                return f"the likely cause is {cause}"
        if difference < 0.5:
            return "the likely cause is another number type (dtype) or other kernels in the generator"
        return "the likely cause is another chat template, tokenizer or model in the generator"


@torch.no_grad()
def score_tokens(
    policy: LanguagePolicy, rows: Completions, sampling: SamplingConfig, *, max_tokens: int
) -> list[np.ndarray[Any, Any]]:
    """Log-probs of the written tokens, row by row, under the distribution that the sampler draws from."""
    found: list[np.ndarray[Any, Any]] = [np.zeros(0)] * len(rows)
    for chosen in micro_batches(rows.lengths(), max_tokens):
        tensors = rows.select(chosen).padded(policy.tokenizer.pad_token_id, policy.device)
        ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], dim=1)
        mask = torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], dim=1)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        width = tensors["completion_ids"].shape[1]
        logits = policy.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=width + 1
        ).logits[:, :-1]
        scored = sampling_logprobs(logits, sampling).gather(-1, tensors["completion_ids"].unsqueeze(-1)).squeeze(-1)
        for place, row in enumerate(chosen):
            found[row] = scored[place, : len(rows.written[row])].cpu().numpy()
    return found


def _rows_of_version(batch: TrajectoryBatch, version: int) -> list[int]:
    """Rows whose every token this version sampled; only those have a key-value cache of one version, too."""
    versions = rows_of(batch, "token_versions")
    return [row for row, of_tokens in enumerate(versions) if of_tokens.size and (of_tokens == version).all()]
