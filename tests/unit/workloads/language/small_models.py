"""Language models small enough to check by hand, as folders that every process of a run would open."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from offbeat.config import RunConfig, language_sections
from offbeat.config.language import GrpoConfig, LanguageConfig, MadeModelConfig
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.language.base_model import open_model, open_tokenizer
from offbeat.workloads.language.columns import language_schema
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.tokenizers import train_tokenizer

# Two groups of four completions of all lengths, and what they are worth.
PROMPTS = [[20, 21, 22]] * 4 + [[30, 31, 32, 33, 34, 35]] * 4
WRITTEN = [[40], [41, 42, 43], [44, 45], [46, 47, 48, 49, 50], [51, 52], [53, 54, 55, 56], [57], [58, 59, 60]]
REWARDS = [0.0, 1.0, 0.0, 2.0, 1.0, 0.0, 0.0, 1.0]

SHAPES: dict[str, dict[str, int]] = {
    "llama": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 256,
    },
    "gpt2": {"n_embd": 16, "n_inner": 32, "n_layer": 2, "n_head": 2, "n_positions": 256},
}


def make_tokenizer() -> PreTrainedTokenizerBase:
    """One token for every printable ASCII character, and three special ones."""
    return train_tokenizer([], MadeModelConfig())


def make_base(folder: Path, architecture: str = "llama", *, seed: int = 0) -> Path:
    """A model with clear preferences, so that no two tokens are nearly as likely, and its tokenizer."""
    tokenizer = make_tokenizer()
    described = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        initializer_range=0.4,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **SHAPES[architecture],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(described)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run_config(
    *, workload: Mapping[str, Any] | None = None, algorithm: Mapping[str, Any] | None = None, **training: Any
) -> RunConfig:
    """A run on groups of four; gradients are not clipped unless asked for."""
    return RunConfig.model_validate(
        {
            "workload": {"kind": "language", "group_size": 4, "num_groups": 2, **(workload or {})},
            "training": {
                "batch_size": 8,
                "max_steps": 10,
                "gradient_clip": 1e9,
                "algorithm": {"kind": "grpo", "learning_rate": 1e-2, "logprob_tolerance": 100.0, **(algorithm or {})},
                **training,
            },
        }
    )


def sections(config: RunConfig) -> tuple[LanguageConfig, GrpoConfig]:
    """Workload and algorithm of a run."""
    return language_sections(config)


def open_policy(base: Path, config: RunConfig, *, seed: int = 0) -> LanguagePolicy:
    """The policy of a base folder, as generator and trainer open it."""
    workload, _ = sections(config)
    model: PreTrainedModel = open_model(base, workload.model, device="cpu", seed=seed)
    return LanguagePolicy(model, open_tokenizer(base))


@torch.no_grad()
def reference_logprobs(
    model: Any, prompt: Sequence[int], written: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probs of the written tokens by one plain forward pass over one unpadded sequence."""
    ids = torch.tensor([[*prompt, *written]])
    logits = model(input_ids=ids).logits[0].double() / temperature
    every = logits.log_softmax(-1)
    return torch.stack([every[len(prompt) + place - 1, token] for place, token in enumerate(written)])


def make_batch(
    prompts: Sequence[Sequence[int]],
    written: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
    rewards: Sequence[float],
    *,
    group_size: int = 4,
) -> TrajectoryBatch:
    """Completions as the log carries them, in groups that stand side by side."""
    num = len(written)
    return TrajectoryBatch.from_arrays(
        language_schema(),
        {
            "min_version": np.zeros(num),
            "max_version": np.zeros(num),
            "finished_at_ns": np.zeros(num),
            "group_id": np.arange(num) // group_size,
            "group_size": np.full(num, group_size),
            "prompt_index": np.arange(num) // group_size,
            "prompt_ids": [list(prompt) for prompt in prompts],
            "completion_ids": [list(ids) for ids in written],
            "logprobs": [list(map(float, values)) for values in logprobs],
            "token_versions": [[0] * len(ids) for ids in written],
            "finish": np.zeros(num),
            "reward": np.asarray(rewards, dtype=np.float32),
            "rewards": [[reward] for reward in rewards],
        },
    )


def recorded_batch(
    base: Path, *, shift: float = 0.0, rewards: Sequence[float] = REWARDS, written: Sequence[Sequence[int]] = WRITTEN
) -> TrajectoryBatch:
    """A batch whose recorded log-probs lie `shift` below those of the base model."""
    model = open_policy(base, run_config()).model
    logprobs = [
        (reference_logprobs(model, prompt, ids) - shift).tolist() if ids else []
        for prompt, ids in zip(PROMPTS, written, strict=True)
    ]
    return make_batch(PROMPTS, written, logprobs, rewards)
