"""One process's part in a step: its rows' gradient, added to the others', and the optimiser update that all make.

    share ──> log-probs at the step's start ──> for each minibatch: passes that fit the memory ──> TRL's loss
                                                ──> gradient ──> sum over the team ──> AdamW

Passes call nobody: a process that runs out of memory in one of them leaves no other waiting, and all of them try again.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from offbeat.config import RunConfig
from offbeat.config.language import GrpoConfig, LanguageConfig
from offbeat.workloads.adam_state import adam_tensors, digest_of, load_adam_tensors
from offbeat.workloads.base import Weights
from offbeat.workloads.language.batches import Completions, micro_batches
from offbeat.workloads.language.fed_trainer import FedTrainer, Measured
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.sharding import own_piece, piece_of, shard, whole
from offbeat.workloads.language.shares import Minibatch, Share
from offbeat.workloads.language.team import Team

logger = logging.getLogger(__name__)

T = TypeVar("T")
MIN_MICRO_BATCH_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one process measured of one update. loss: its part of the sum; means: each with its weight."""

    loss: float
    grad_norm: float
    applied: bool
    means: Mapping[str, Measured]


class Updater:
    """The parameters, their optimiser, and the passes over them. Every process of a team has one."""

    def __init__(
        self, policy: LanguagePolicy, config: RunConfig, workload: LanguageConfig, algorithm: GrpoConfig, team: Team
    ) -> None:
        self._policy, self._algorithm, self._team = policy, algorithm, team
        self._gradient_clip = config.training.gradient_clip
        self.sharded = team.size > 1 and config.strategy.sharding == "full"
        cut = partial(shard, num_processes=team.size, device=policy.device) if self.sharded else None
        self.trainer = FedTrainer(policy, config, workload, algorithm, shard=cut)
        self.optimizer: Any = self.trainer.optimizer
        self.names, self.parameters = zip(*policy.trained.items(), strict=True)
        self.micro_batch_tokens = algorithm.micro_batch_tokens

    def learn(self, share: Share) -> list[Update]:
        """Every update of a step; all processes of the team must be in it."""
        for group in self.optimizer.param_groups:
            group["lr"] = share.learning_rate
        prepared = _Prepared.of(self, share.rows)
        self._policy.model.train()
        try:
            return [self._updated(prepared, minibatch) for minibatch in share.minibatches]
        finally:
            self._policy.model.eval()

    def state(self) -> tuple[Weights, dict[str, Tensor]]:
        """Trained parameters, and the optimiser's moments by name, none before its first update; on the CPU.

        Where they are cut, all processes of the team must ask together.
        """
        parameters, moments = (
            {name: whole(part.detach()).cpu() for name, part in tensors.items()}
            for tensors in (self._policy.trained, self._moments())
        )
        return parameters, moments

    def digest(self, steps: int) -> str:
        """BLAKE2b over every trained parameter, optimiser value and the step, in a fixed order; of the own pieces."""
        tensors = {**self._policy.trained, **self._moments()}
        return digest_of(steps, {name: own_piece(part.detach()) for name, part in tensors.items()})

    def restore(
        self, parameters: Mapping[str, Tensor], moments: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> None:
        """Take over what another process had; raises WorkloadError when the parameters do not fit."""
        self._policy.load_weights(parameters)
        likes = dict(zip(self.names, self.parameters, strict=True))
        pieces = {name: piece_of(part, likes[name.partition("/")[2]]) for name, part in moments.items()}
        load_adam_tensors(self._inner_optimizer, pieces, self.names, self.parameters)
        self.micro_batch_tokens = int(settings["micro_batch_tokens"])
        if settings["scaler"] and self.trainer.accelerator.scaler is not None:
            self.trainer.accelerator.scaler.load_state_dict(settings["scaler"])

    def settings(self) -> dict[str, Any]:
        """What `restore` needs beside tensors; JSON."""
        scaler = self.trainer.accelerator.scaler
        return {
            "micro_batch_tokens": self.micro_batch_tokens,
            "scaler": dict(scaler.state_dict()) if scaler is not None else {},
        }

    def score(self, rows: Completions, *, reference: bool = False) -> list[Tensor]:
        """Log-probs of the written tokens, row by row, under the present (or the reference) parameters."""
        return self._within_memory(lambda: self._scored(rows, reference=reference))

    @property
    def needs_proximal(self) -> bool:
        """Whether the correction compares with the policy at the step's start."""
        return self._algorithm.correction in ("truncated_token", "truncated_sequence", "decoupled")

    @property
    def needs_reference(self) -> bool:
        """Whether the loss holds a divergence from the base policy."""
        return self._algorithm.kl_coef > 0

    def _moments(self) -> dict[str, Tensor]:
        return adam_tensors(self._inner_optimizer, self.names, self.parameters)

    @property
    def _inner_optimizer(self) -> Any:
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _updated(self, prepared: "_Prepared", minibatch: Minibatch) -> Update:
        part = prepared.select(minibatch.rows)
        loss, means = self._within_memory(lambda: self._gradient(part, minibatch))
        if not self.sharded:  # There every pass has added its gradient up already.
            self._team.add_up(self.parameters)
        norm = float(whole(self.trainer.accelerator.clip_grad_norm_(self.parameters, self._gradient_clip)))
        # A gradient beyond float32 must not reach the parameters; the update is left out, and the metric says so.
        # A loss scaler leaves it out by itself, and must be asked, or it never lowers its scale.
        if (applied := math.isfinite(norm)) or self.trainer.accelerator.scaler is not None:
            self.optimizer.step()
        return Update(loss=loss, grad_norm=norm, applied=applied, means=means)

    def _gradient(self, part: "_Prepared", minibatch: Minibatch) -> tuple[float, dict[str, Measured]]:
        self.optimizer.zero_grad(set_to_none=True)
        self.trainer.take_metrics()  # Whatever a try that ran out of memory had measured.
        total = 0.0
        for chosen in self._passes(part.rows):
            tensors = self._loss_tensors(part.select(chosen) if chosen else _Prepared.nothing(self))
            loss = self.trainer.loss(tensors, num_rows=minibatch.num_rows, num_tokens=minibatch.num_tokens)
            self.trainer.accelerator.backward(loss if chosen else loss * 0.0)
            total += float(loss.detach()) if chosen else 0.0
        return total, self.trainer.take_metrics()

    def _passes(self, rows: Completions) -> list[list[int]]:
        """Rows pass by pass. Blocks that are cut come together in every pass of all processes: some get empty ones."""
        passes = micro_batches(rows.lengths(), self.micro_batch_tokens)
        most = self._team.most(len(passes)) if self.sharded else 0
        return passes + [[]] * (most - len(passes))

    def _within_memory(self, work: Callable[[], T]) -> T:
        """Do it; when memory runs out here or in the team, again in passes of half the size, which stay.

        With blocks that are cut, the others would wait in a pass for whoever failed: there it is an error at once.
        """
        while not self.sharded:
            failed: RuntimeError | None = None
            try:
                done = work()
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                # Without its frames, which hold on to the failed pass's tensors.
                failed = error.with_traceback(None)
            if self._team.all_agree(failed is None):
                return done
            if self.micro_batch_tokens <= MIN_MICRO_BATCH_TOKENS:
                raise failed or RuntimeError("another trainer process is out of memory with the smallest passes")
            self.micro_batch_tokens = max(MIN_MICRO_BATCH_TOKENS, self.micro_batch_tokens // 2)
            logger.warning("out of memory: passes are cut to %d tokens from now on", self.micro_batch_tokens)
            self.optimizer.zero_grad(set_to_none=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return work()

    def _loss_tensors(self, part: "_Prepared") -> dict[str, Any]:
        tensors: dict[str, Any] = part.rows.padded(self._policy.tokenizer.pad_token_id, self._policy.device)
        behaviour, width = tensors.pop("behaviour_logprobs"), tensors["completion_ids"].shape[1]
        if self._algorithm.correction == "clip":
            tensors["old_per_token_logps"] = behaviour
        if part.proximal is not None:
            proximal = _stacked(part.proximal, width, self._policy.device)
            mask = tensors["completion_mask"]
            tensors["old_per_token_logps"] = proximal
            tensors["importance_sampling_ratio"] = self._importance_weights(proximal - behaviour, mask)
        if part.reference is not None:
            tensors["ref_per_token_logps"] = _stacked(part.reference, width, self._policy.device)
        return tensors

    def _importance_weights(self, log_ratios: Tensor, mask: Tensor) -> Tensor:
        """Weights of the proximal over the behaviour policy, [N, C], or [N, 1] of whole sequences."""
        algorithm = self._algorithm
        if algorithm.correction == "truncated_sequence":
            log_ratios = (log_ratios * mask).sum(-1, keepdim=True)
        weights = log_ratios.exp()
        return weights if algorithm.correction == "decoupled" else weights.clamp(max=algorithm.truncation)

    def _scored(self, rows: Completions, *, reference: bool) -> list[Tensor]:
        found: list[Tensor] = [torch.empty(0)] * len(rows)
        for chosen in self._passes(rows):
            part = rows.select(chosen) if chosen else _Prepared.nothing(self).rows
            tensors = part.padded(self._policy.tokenizer.pad_token_id, self._policy.device)
            scored = self.trainer.logprobs(tensors, reference=reference).cpu()
            for place, row in enumerate(chosen):
                found[row] = scored[place, : len(rows.written[row])]
        return found


class _Prepared:
    """Rows with what a whole step computes once: log-probs at its start, and of the reference policy."""

    def __init__(
        self, rows: Completions, proximal: Sequence[Tensor] | None, reference: Sequence[Tensor] | None
    ) -> None:
        self.rows, self.proximal, self.reference = rows, proximal, reference

    @classmethod
    def of(cls, updater: Updater, rows: Completions) -> "_Prepared":
        proximal = updater.score(rows) if updater.needs_proximal else None
        reference = updater.score(rows, reference=True) if updater.needs_reference else None
        return cls(rows, proximal, reference)

    @classmethod
    def nothing(cls, updater: Updater) -> "_Prepared":
        """What a process computes while others have rows left: a prompt of one token, and nothing written."""
        empty = np.zeros(0, np.int64)
        rows = Completions(
            prompts=[np.zeros(1, np.int64)], written=[empty], logprobs=[empty], advantages=torch.zeros(1)
        )
        scores = [torch.zeros(0)]
        return cls(rows, scores if updater.needs_proximal else None, scores if updater.needs_reference else None)

    def select(self, rows: Sequence[int]) -> "_Prepared":
        proximal = None if self.proximal is None else [self.proximal[row] for row in rows]
        reference = None if self.reference is None else [self.reference[row] for row in rows]
        return _Prepared(self.rows.select(rows), proximal, reference)


def summed(parts: Sequence[Update]) -> dict[str, float]:
    """One update as the whole team made it; means are over what every process measured."""
    names = dict.fromkeys(name for part in parts for name in part.means)
    return {
        "training_loss": sum(part.loss for part in parts),
        "grad_norm": parts[0].grad_norm,
        "skipped_updates": 0.0 if parts[0].applied else 1.0,
        **{name: _mean([part.means[name] for part in parts if name in part.means]) for name in names},
    }


def _mean(measured: Sequence[Measured]) -> float:
    return sum(value * weight for value, weight in measured if weight) / max(1, sum(weight for _, weight in measured))


def _stacked(rows: Sequence[Tensor], width: int, device: torch.device) -> Tensor:
    padded = torch.zeros((len(rows), width))
    for row, values in enumerate(rows):
        padded[row, : len(values)] = values
    return padded.to(device)


def _out_of_memory(error: RuntimeError) -> bool:
    said = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in said or "out of memory" in said
