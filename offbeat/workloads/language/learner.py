"""The learner of language workloads: group-relative policy optimisation on completions of known behaviour.

    batch ──> advantages of groups ──> leave out equal groups ──> for each epoch, for each minibatch:
                                         passes that fit the memory ──> TRL's loss ──> accumulated gradient ──> AdamW

The behaviour's log-probs are recorded ones. `correction` says what becomes of them: the clipped ratio's denominator
(clip), an importance weight beside a ratio against the policy at the step's start (truncated, decoupled), or nothing.
"""

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from offbeat.algorithms.group_advantages import equal_groups, group_advantages
from offbeat.algorithms.schedules import learning_rate
from offbeat.config import RunConfig
from offbeat.config.language import GrpoConfig, LanguageConfig
from offbeat.errors import CheckpointError, WorkloadError
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.adam_state import adam_tensors, check_adam_tensors, digest_of, load_adam_tensors
from offbeat.workloads.base import Weights
from offbeat.workloads.language.batches import Completions, completions_of, micro_batches
from offbeat.workloads.language.checks import LogprobCheck
from offbeat.workloads.language.fed_trainer import FedTrainer
from offbeat.workloads.language.policy import LanguagePolicy

logger = logging.getLogger(__name__)

T = TypeVar("T")
FORMAT = "offbeat-language-learner-1"
MIN_MICRO_BATCH_TOKENS = 16
# What TRL calls its measures, and what the ledger does.
MEASURES = {"entropy": "entropy", "kl": "kl", "clip_ratio/region_mean": "clip_fraction"}


class LanguageLearner:
    """A language model that learns; see `offbeat.workloads.base.Learner`."""

    def __init__(
        self, config: RunConfig, workload: LanguageConfig, algorithm: GrpoConfig, policy: LanguagePolicy
    ) -> None:
        self._training, self._workload, self._algorithm = config.training, workload, algorithm
        self._policy = policy
        self._trainer = FedTrainer(policy, config, workload, algorithm)
        self._names, self._parameters = zip(*policy.trained.items(), strict=True)
        self._check = LogprobCheck(algorithm, workload.sampling)
        self._optimizer: Any = self._trainer.optimizer
        self._micro_batch_tokens = algorithm.micro_batch_tokens
        self._steps = 0

    @property
    def steps(self) -> int:
        """Steps taken."""
        return self._steps

    def step(self, batch: TrajectoryBatch, *, seed: int, version: int = 0) -> dict[str, float]:
        """One step on whole groups; an optimiser update for each minibatch of each epoch.

        Raises LogprobMismatch when what is recorded of `version` is not what it samples.
        """
        checked = self._check(self._policy, batch, step=self._steps, version=version)
        rate = self._set_learning_rate()
        rewards = torch.from_numpy(batch.numpy("reward").copy()).view(-1, self._workload.group_size)
        advantages = group_advantages(rewards, self._algorithm.advantages).flatten()
        equal = equal_groups(rewards)
        rows = completions_of(batch, advantages)
        kept = self._kept_rows(equal)
        self._policy.model.train()
        updates = [self._update(part) for part in self._minibatches(rows.select(kept), seed)] if kept else []
        self._policy.model.eval()
        self._steps += 1
        means = {name: sum(update[name] for update in updates) / len(updates) for name in updates[0]} if updates else {}
        return {
            "training_loss": 0.0,
            **means,
            **checked,
            **_reward_metrics(batch, rewards),
            "equal_groups": float(equal.sum()),
            "samples": float(rows.num_tokens),
            "learning_rate": rate,
            "micro_batch_tokens": float(self._micro_batch_tokens),
        }

    def weights(self) -> Weights:
        """The trained parameters, as CPU clones."""
        return self._policy.weights()

    def digest(self) -> str:
        """BLAKE2b over every trained parameter, optimiser value and the step, in a fixed order."""
        return digest_of(self._steps, {**self._policy.trained, **self._learner_tensors()})

    def save(self, folder: Path) -> None:
        """Write `policy/` (a transformers folder), `optimizer.safetensors` and `learner.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._policy.save(folder / "policy")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self._learner_tensors().items()}
        exact = {
            f"parameter/{name}": tensor.detach().cpu().contiguous() for name, tensor in self._policy.trained.items()
        }
        save_file({**tensors, **exact}, folder / "optimizer.safetensors")
        document = {
            "format": FORMAT,
            "steps": self._steps,
            "parameters": list(self._names),
            "micro_batch_tokens": self._micro_batch_tokens,
            "scaler": self._scaler_state(),
        }
        (folder / "learner.json").write_text(json.dumps(document, indent=2), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote; raises CheckpointError when it does not fit."""
        try:
            document = json.loads((folder / "learner.json").read_text(encoding="utf-8"))
            tensors = load_file(folder / "optimizer.safetensors", device=str(self._policy.device))
            if document["format"] != FORMAT or document["parameters"] != list(self._names):
                raise CheckpointError(f"{folder / 'learner.json'}: not the state of a learner with these parameters")
            steps, tokens = int(document["steps"]), int(document["micro_batch_tokens"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(f"no learner can be opened in {folder}: {type(error).__name__}: {error}") from error
        prefix = "parameter/"
        parameters = {name.removeprefix(prefix): part for name, part in tensors.items() if name.startswith(prefix)}
        moments = {name: part for name, part in tensors.items() if not name.startswith(prefix)}
        check_adam_tensors(moments, self._names, self._parameters, folder)
        try:
            self._policy.load_weights(parameters)
        except WorkloadError as error:
            raise CheckpointError(f"{folder}: {error}") from error
        load_adam_tensors(self._inner_optimizer, moments, self._names, self._parameters)
        self._steps, self._micro_batch_tokens = steps, tokens
        if document["scaler"] and self._trainer.accelerator.scaler is not None:
            self._trainer.accelerator.scaler.load_state_dict(document["scaler"])

    @property
    def _inner_optimizer(self) -> Any:
        return getattr(self._optimizer, "optimizer", self._optimizer)

    def _learner_tensors(self) -> dict[str, Tensor]:
        return adam_tensors(self._inner_optimizer, self._names, self._parameters)

    def _scaler_state(self) -> dict[str, Any]:
        scaler = self._trainer.accelerator.scaler
        return dict(scaler.state_dict()) if scaler is not None else {}

    def _set_learning_rate(self) -> float:
        algorithm, last = self._algorithm, self._training.max_steps
        rate = learning_rate(algorithm.lr_schedule, algorithm.learning_rate, step=self._steps, max_steps=last)
        rate *= min(1.0, (self._steps + 1) / (algorithm.warmup_steps + 1))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _kept_rows(self, equal: Tensor) -> list[int]:
        if not self._algorithm.skip_equal_groups:
            return list(range(len(equal) * self._workload.group_size))
        groups = torch.nonzero(~equal).flatten().tolist()
        size = self._workload.group_size
        return [row for group in groups for row in range(group * size, (group + 1) * size)]

    def _minibatches(self, rows: Completions, seed: int) -> Iterator["_Prepared"]:
        prepared = _Prepared.of(self, rows)
        pieces = min(self._algorithm.minibatches, len(rows))
        generator = torch.Generator().manual_seed(seed)
        for _ in range(self._algorithm.epochs):
            order = torch.randperm(len(rows), generator=generator)
            yield from (prepared.select(part.tolist()) for part in torch.tensor_split(order, pieces))

    def _update(self, part: "_Prepared") -> dict[str, float]:
        return self._within_memory(lambda: self._tried(part))

    def _within_memory(self, work: Callable[[], T]) -> T:
        """Do it; after running out of memory, again in passes of half the size, which stay for the rest of the run."""
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not _out_of_memory(error) or self._micro_batch_tokens <= MIN_MICRO_BATCH_TOKENS:
                    raise
            # Out of the handler, where the error no longer holds on to the failed pass's tensors.
            self._micro_batch_tokens = max(MIN_MICRO_BATCH_TOKENS, self._micro_batch_tokens // 2)
            logger.warning("out of memory: passes are cut to %d tokens from now on", self._micro_batch_tokens)
            self._optimizer.zero_grad(set_to_none=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _tried(self, part: "_Prepared") -> dict[str, float]:
        self._optimizer.zero_grad(set_to_none=True)
        self._trainer.take_metrics()  # Whatever a try that ran out of memory had measured.
        rows, total = part.rows, 0.0
        for chosen in micro_batches(rows.lengths(), self._micro_batch_tokens):
            tensors = self._loss_tensors(part.select(chosen))
            loss = self._trainer.loss(tensors, num_rows=len(rows), num_tokens=rows.num_tokens)
            self._trainer.accelerator.backward(loss)
            total += float(loss.detach())
        norm = float(self._trainer.accelerator.clip_grad_norm_(self._parameters, self._training.gradient_clip))
        # A gradient beyond float32 must not reach the parameters; the update is left out, and the metric says so.
        # A loss scaler leaves it out by itself, and must be asked, or it never lowers its scale.
        if (applied := math.isfinite(norm)) or self._trainer.accelerator.scaler is not None:
            self._optimizer.step()
        measured = self._trainer.take_metrics()
        return {
            "training_loss": total,
            "grad_norm": norm,
            "skipped_updates": 0.0 if applied else 1.0,
            **{ours: measured[theirs] for theirs, ours in MEASURES.items() if theirs in measured},
        }

    def _loss_tensors(self, part: "_Prepared") -> dict[str, Any]:
        tensors: dict[str, Any] = part.rows.padded(self._policy.tokenizer.pad_token_id, self._policy.device)
        behaviour, width = tensors.pop("behaviour_logprobs"), tensors["completion_ids"].shape[1]
        correction = self._algorithm.correction
        if correction == "clip":
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

    def score(self, rows: Completions, *, reference: bool = False) -> list[Tensor]:
        """Log-probs of the written tokens, row by row, under the present (or the reference) parameters."""
        return self._within_memory(lambda: self._scored(rows, reference=reference))

    def _scored(self, rows: Completions, *, reference: bool) -> list[Tensor]:
        found: list[Tensor] = [torch.empty(0)] * len(rows)
        for chosen in micro_batches(rows.lengths(), self._micro_batch_tokens):
            part = rows.select(chosen)
            tensors = part.padded(self._policy.tokenizer.pad_token_id, self._policy.device)
            scored = self._trainer.logprobs(tensors, reference=reference).cpu()
            for place, row in enumerate(chosen):
                found[row] = scored[place, : len(rows.written[row])]
        return found

    @property
    def needs_proximal(self) -> bool:
        """Whether the correction compares with the policy at the step's start."""
        return self._algorithm.correction in ("truncated_token", "truncated_sequence", "decoupled")

    @property
    def needs_reference(self) -> bool:
        """Whether the loss holds a divergence from the base policy."""
        return self._algorithm.kl_coef > 0


class _Prepared:
    """Rows with what a whole step computes once: log-probs at its start, and of the reference policy."""

    def __init__(
        self, rows: Completions, proximal: Sequence[Tensor] | None, reference: Sequence[Tensor] | None
    ) -> None:
        self.rows, self.proximal, self.reference = rows, proximal, reference

    @classmethod
    def of(cls, learner: LanguageLearner, rows: Completions) -> "_Prepared":
        proximal = learner.score(rows) if learner.needs_proximal else None
        reference = learner.score(rows, reference=True) if learner.needs_reference else None
        return cls(rows, proximal, reference)

    def select(self, rows: Sequence[int]) -> "_Prepared":
        proximal = None if self.proximal is None else [self.proximal[row] for row in rows]
        reference = None if self.reference is None else [self.reference[row] for row in rows]
        return _Prepared(self.rows.select(rows), proximal, reference)


def _stacked(rows: Sequence[Tensor], width: int, device: torch.device) -> Tensor:
    padded = torch.zeros((len(rows), width))
    for row, values in enumerate(rows):
        padded[row, : len(values)] = values
    return padded.to(device)


def _out_of_memory(error: RuntimeError) -> bool:
    said = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in said or "out of memory" in said


def _reward_metrics(batch: TrajectoryBatch, rewards: Tensor) -> dict[str, float]:
    known = rewards[~torch.isnan(rewards)]
    lengths = batch.ragged("completion_ids")[1]
    metrics = {
        "completion_length_mean": float(lengths[-1]) / max(1, len(batch)),
        "cut_share": float(batch.numpy("finish").mean()),
        "unscored": float(rewards.numel() - known.numel()),
    }
    if known.numel():
        metrics |= {"reward_mean": float(known.mean()), "reward_std": float(known.std(correction=0))}
        # The learning curve of every kind of work has one name.
        metrics["episode_return_mean"] = metrics["reward_mean"]
    return metrics
