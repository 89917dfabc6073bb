"""The engine that writes completions: a protocol, and the one inside this process on a transformers model.

    waiting requests ──prefill──> ┐
                                  ├── one batch, one token a step ──> finished leave at once, others enter
    running sequences ────────────┘

All sequences of the batch end at the same right edge: a step adds one column to the key-value cache, whoever joins
is padded on the left, and columns that nobody uses any more are cut off there.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache

from offbeat.config.language import SamplingConfig
from offbeat.workloads.language.columns import CUT, STOPPED
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.sampling import sample, sampling_logprobs

STOP_WINDOW = 8  # Tokens beyond a stop text's own bytes that are decoded to look for it.
JOIN_SHARE = 8  # Sequences join when an eighth of the places is free: each joining copies the cache.


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to continue; `key` is the caller's."""

    key: int
    ids: Sequence[int]


@dataclass(slots=True, kw_only=True)
class Completion:
    """What was written so far: for every token its log-prob and the policy version that sampled it."""

    key: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: int = STOPPED


class Engine(Protocol):
    """Writes completions of many prompts at once. Owned by one thread."""

    @property
    def num_open(self) -> int:
        """Requests that are not finished."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Take up prompts; they enter as places become free."""

    def advance(self, policy: LanguagePolicy, version: int) -> list[Completion]:
        """One step with this policy for all running sequences; returns those that it finished."""

    def clear(self) -> None:
        """Forget every request."""


class TransformersEngine:
    """The engine on a transformers model in this process.

    num_sequences: most that run at once. greedy: take the likeliest token; log-probs stay those of sampling.
    """

    def __init__(
        self, sampling: SamplingConfig, *, num_sequences: int, generator: torch.Generator, greedy: bool = False
    ) -> None:
        self._sampling = sampling
        self._num_sequences = num_sequences
        self._generator = generator
        self._greedy = greedy
        self._waiting: deque[Request] = deque()
        self._running: list[Completion] = []
        self._state: _State | None = None

    @property
    def num_open(self) -> int:
        """Requests that are not finished."""
        return len(self._waiting) + len(self._running)

    def submit(self, requests: Sequence[Request]) -> None:
        """Take up prompts of at least one token each."""
        self._waiting.extend(requests)

    def clear(self) -> None:
        """Forget every request."""
        self._waiting.clear()
        self._running.clear()
        self._state = None

    @torch.inference_mode()
    def advance(self, policy: LanguagePolicy, version: int) -> list[Completion]:
        """Let waiting prompts in, sample one token for each sequence, and score what follows with this policy."""
        self._admit(policy, version)
        if self._state is None:
            return []
        tokens = self._sample(self._state)
        ended = [self._ends(completion, policy) for completion in self._running]
        finished = [completion for completion, end in zip(self._running, ended, strict=True) if end]
        kept = [row for row, end in enumerate(ended) if not end]
        self._running = [self._running[row] for row in kept]
        self._state = self._state.select(kept).extended(policy, tokens[kept], version) if kept else None
        return finished

    def _admit(self, policy: LanguagePolicy, version: int) -> None:
        free = self._num_sequences - len(self._running)
        entering = min(free, len(self._waiting))
        if not entering or (self._running and free < max(1, self._num_sequences // JOIN_SHARE)):
            return
        requests = [self._waiting.popleft() for _ in range(entering)]
        state = _State.of_prompts(policy, [request.ids for request in requests], version)
        self._state = state if self._state is None else self._state.joined(state)
        self._running += [Completion(key=request.key) for request in requests]

    def _sample(self, state: "_State") -> Tensor:
        logprobs = sampling_logprobs(state.logits, self._sampling)
        tokens = logprobs.argmax(-1) if self._greedy else sample(logprobs.cpu(), self._generator).to(logprobs.device)
        chosen = logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        parts = zip(self._running, tokens.tolist(), chosen.tolist(), state.versions, strict=True)
        for completion, token, logprob, version in parts:
            completion.ids.append(token)
            completion.logprobs.append(logprob)
            completion.versions.append(version)
        return tokens

    def _ends(self, completion: Completion, policy: LanguagePolicy) -> bool:
        if completion.ids[-1] in policy.end_ids or self._has_stop_text(completion, policy):
            return True
        if len(completion.ids) >= self._sampling.max_new_tokens:
            completion.finish = CUT
            return True
        return False

    def _has_stop_text(self, completion: Completion, policy: LanguagePolicy) -> bool:
        if not self._sampling.stop:
            return False
        window = max(len(stop.encode()) for stop in self._sampling.stop) + STOP_WINDOW
        tail = policy.tokenizer.decode(completion.ids[-window:])
        return any(stop in tail for stop in self._sampling.stop)


@dataclass(slots=True, kw_only=True)
class _State:
    """Running sequences: keys and values per layer [B, H, L, D], which columns count [B, L], the next logits [B, V]."""

    layers: list[tuple[Tensor, Tensor]]
    mask: Tensor  # int64 [B, L], right-aligned
    logits: Tensor  # [B, V]
    versions: list[int]  # of the policy that made the logits

    @classmethod
    def of_prompts(cls, policy: LanguagePolicy, prompts: Sequence[Sequence[int]], version: int) -> "_State":
        longest = max(map(len, prompts))
        ids = torch.zeros((len(prompts), longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.as_tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        ids, mask = ids.to(policy.device), mask.to(policy.device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        layers, logits = _forward(policy, ids, mask, positions, DynamicCache())
        return cls(layers=layers, mask=mask, logits=logits, versions=[version] * len(prompts))

    def extended(self, policy: LanguagePolicy, tokens: Tensor, version: int) -> "_State":
        """After one more token [B] of each sequence."""
        mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], dim=1)
        positions = self.mask.sum(-1, keepdim=True)
        layers, logits = _forward(policy, tokens.unsqueeze(1), mask, positions, DynamicCache(self.layers))
        return _State(layers=layers, mask=mask, logits=logits, versions=[version] * len(tokens))

    def joined(self, other: "_State") -> "_State":
        """Both as one batch, padded on the left to the longer one."""
        length = max(self.mask.shape[1], other.mask.shape[1])
        layers = [
            (_stacked(mine[0], theirs[0], length, dim=2), _stacked(mine[1], theirs[1], length, dim=2))
            for mine, theirs in zip(self.layers, other.layers, strict=True)
        ]
        return _State(
            layers=layers,
            mask=_stacked(self.mask, other.mask, length, dim=1),
            logits=torch.cat([self.logits, other.logits]),
            versions=self.versions + other.versions,
        )

    def select(self, rows: Sequence[int]) -> "_State":
        """These sequences alone, without the columns that only others used."""
        if len(rows) == len(self.versions):
            return self
        index = torch.as_tensor(rows, device=self.mask.device)
        mask = self.mask.index_select(0, index)
        begin = int(mask.amax(0).argmax())
        layers = [tuple(part.index_select(0, index)[:, :, begin:] for part in layer) for layer in self.layers]
        return _State(
            layers=layers,  # type: ignore[arg-type]
            mask=mask[:, begin:],
            logits=self.logits.index_select(0, index),
            versions=[self.versions[row] for row in rows],
        )


def _forward(
    policy: LanguagePolicy, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    output = policy.model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    layers = [(layer.keys, layer.values) for layer in output.cache.layers]
    return layers, output.logits[:, -1]


def _stacked(upper: Tensor, lower: Tensor, length: int, *, dim: int) -> Tensor:
    return torch.cat([_padded(upper, length, dim=dim), _padded(lower, length, dim=dim)])


def _padded(tensor: Tensor, length: int, *, dim: int) -> Tensor:
    missing = length - tensor.shape[dim]
    if not missing:
        return tensor
    shape = [*tensor.shape[:dim], missing, *tensor.shape[dim + 1 :]]
    return torch.cat([tensor.new_zeros(shape), tensor], dim=dim)
