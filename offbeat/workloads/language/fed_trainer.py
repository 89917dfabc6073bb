"""TRL's GRPOTrainer, fed with completions that others wrote. The one module that imports trl.

    Completions ──> tensors, with the behaviour's log-probs as the old ones ──> TRL's loss ──> accelerate's backward

Its own generation and its own loop are never used: whoever holds it says which rows make a pass and when the optimiser
steps. What TRL brings are the losses, the reference policy, LoRA's disabled adapter, and accelerate beneath.
"""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DISABLE_MLFLOW_INTEGRATION", "TRUE")  # It reports nothing, and would import MLflow: two seconds.

import torch
from datasets import Dataset
from torch import Tensor
from trl import GRPOConfig as TrlConfig
from trl import GRPOTrainer

from offbeat.config import RunConfig
from offbeat.config.language import GrpoConfig, LanguageConfig
from offbeat.workloads.language.policy import LanguagePolicy, trained_parameters

Measured = tuple[float, float]  # A mean and its weight.
# What TRL calls its measures, and what the ledger does.
MEASURES = {"entropy": "entropy", "kl": "kl", "clip_ratio/region_mean": "clip_fraction"}


class FedTrainer(GRPOTrainer):  # type: ignore[misc]
    """Computes losses on given tensors; `generate` is nobody's business here."""

    def __init__(
        self,
        policy: LanguagePolicy,
        config: RunConfig,
        workload: LanguageConfig,
        algorithm: GrpoConfig,
        *,
        shard: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__(
            model=policy.model,
            reward_funcs=_no_reward,
            args=_arguments(config, workload, algorithm),
            train_dataset=Dataset.from_list([{"prompt": ""}]),
            processing_class=policy.tokenizer,
        )
        # These two make TRL's loss take the importance weights that it is given beside the old log-probs.
        self.use_vllm = self.vllm_importance_sampling_correction = algorithm.correction in (
            "truncated_token",
            "truncated_sequence",
            "decoupled",
        )
        self.model: Any
        self.optimizer: Any
        if workload.model.gradient_checkpointing:  # transformers would do it in `train`, which is never called.
            policy.model.activation_checkpointing_enable({"use_reentrant": False})
        if shard is not None:  # After TRL's copy for the reference policy, before the optimiser's first look.
            shard(policy.model)
            policy.trained = trained_parameters(policy.model)
        self.create_optimizer()
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
        self._passes: list[tuple[int, int]] = []  # Rows and written tokens of each pass since `take_metrics`.
        self._rows_normalise = algorithm.loss in ("grpo", "dr_grpo")

    def loss(self, tensors: Mapping[str, Any], *, num_rows: int, num_tokens: int) -> Tensor:
        """This pass's share of the loss of a minibatch of `num_rows` completions and `num_tokens` written tokens."""
        rows, tokens = len(tensors["completion_ids"]), tensors["completion_mask"].sum()
        total = torch.tensor(float(max(1, num_tokens)), device=tokens.device)
        self.current_gradient_accumulation_steps = 1
        with self.compute_loss_context_manager():
            whole = self.compute_loss(self.model, {**tensors, "num_items_in_batch": total})
        self._passes.append((rows, int(tokens)))
        # dapo divides by the minibatch's tokens itself; the others take means over what they see.
        if self.loss_type == "dapo":
            return whole  # type: ignore[no-any-return]
        share = rows / num_rows if self._rows_normalise else tokens / total
        return whole * share  # type: ignore[no-any-return]

    @torch.no_grad()
    def logprobs(self, tensors: Mapping[str, Tensor], *, reference: bool = False) -> Tensor:
        """Log-probs [N, C] of the written tokens under the present parameters, or under the reference policy."""
        model = self.model
        if reference and self.ref_model is not None:
            model = self.ref_model
        inner = self.accelerator.unwrap_model(self.model)
        if reference and self.ref_model is None:
            with inner.disable_adapter():
                return self._logprobs(model, tensors)
        return self._logprobs(model, tensors)

    def take_metrics(self) -> dict[str, Measured]:
        """What TRL has measured since the last call, by our names: means over tokens (rows, where a row has one ratio).

        Each mean comes with its weight. A pass without a token has measured nothing, be it NaN.
        """
        measured, passes, self._passes = dict(self._metrics["train"]), self._passes, []
        self._metrics["train"].clear()
        by_row = self.importance_sampling_level == "sequence"
        return {
            ours: _mean(
                measured[theirs],
                [rows if by_row and theirs.startswith("clip_ratio") else tokens for rows, tokens in passes],
            )
            for theirs, ours in MEASURES.items()
            if passes and len(measured.get(theirs, ())) == len(passes)
        }

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, *more: Any, **named: Any
    ) -> Any:
        """TRL's, with positions: left to itself a model of absolute ones counts the padding before a prompt too."""

        def placed(**inputs: Any) -> Any:
            return model(**inputs, position_ids=(inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0))

        return super()._get_per_token_logps_and_entropies(placed, input_ids, attention_mask, *more, **named)

    def _logprobs(self, model: Any, tensors: Mapping[str, Tensor]) -> Tensor:
        found: Tensor = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], dim=1),
            torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], dim=1),
            tensors["completion_ids"].shape[1],
        )[0]
        return found


def _arguments(config: RunConfig, workload: LanguageConfig, algorithm: GrpoConfig) -> TrlConfig:
    return TrlConfig(
        output_dir=tempfile.gettempdir(),  # Nothing is written there: saving and logging are off.
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=config.seed,
        use_cpu=config.training.device == "cpu",
        bf16=algorithm.mixed_precision == "bf16",
        fp16=algorithm.mixed_precision == "fp16",
        max_steps=config.training.max_steps,
        learning_rate=algorithm.learning_rate,
        weight_decay=algorithm.weight_decay,
        max_grad_norm=config.training.gradient_clip,
        activation_checkpointing=workload.model.gradient_checkpointing,
        disable_dropout=True,
        remove_unused_columns=False,
        # Of TRL's own sampling, which is not used; its checks want at least two.
        num_generations=max(2, workload.group_size),
        per_device_train_batch_size=max(2, workload.group_size),
        max_completion_length=workload.sampling.max_new_tokens,
        temperature=workload.sampling.temperature,
        loss_type=algorithm.loss,
        importance_sampling_level=algorithm.ratio,
        epsilon=algorithm.clip_low,
        epsilon_high=algorithm.clip_high,
        beta=algorithm.kl_coef,
    )


def _mean(values: Sequence[float], weights: Sequence[int]) -> Measured:
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True) if weight) / max(1, total), total


def _no_reward(**_: Any) -> list[float]:
    raise NotImplementedError("rewards come with the completions")
