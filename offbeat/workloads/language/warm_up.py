"""A short supervised start: a few solved examples teach a model the form of an answer before rewards do the rest."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offbeat.config.language import LanguageConfig, WarmUpConfig
from offbeat.errors import ConfigError
from offbeat.workloads.language.prompts import make_prompts
from offbeat.workloads.language.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

IGNORED = -100  # The label of what is not learned, as transformers has it.
MAX_NORM = 1.0
# AdamW's usual second moment forgets too slowly for a start of a few hundred steps.
BETAS = (0.9, 0.95)
RISING_STEPS = 10

Example = tuple[list[int], list[int]]  # token ids of a prompt, and of its answer with the end token


def warm_up(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: Sequence[tuple[int, Row]],
    workload: LanguageConfig,
    *,
    seed: int,
    device: str,
) -> dict[str, float]:
    """Train the model in place on the first `examples` rows that have a completion; returns its last mean loss.

    Only the completion and the end token are learned. Raises ConfigError when no row has one.
    """
    config = workload.model.warm_up
    examples = _examples(model, tokenizer, rows, workload)[: config.examples]
    if not examples:
        raise ConfigError(
            f"warm-up: no row has a text in the column {config.completion_column!r} that fits the model's length"
        )
    model.to(device).train()
    # Dropout draws from the global state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loss = _trained(model, tokenizer, examples, config, torch.Generator().manual_seed(seed))
    model.eval()
    return {
        "warm_up_steps": float(config.steps),
        "warm_up_examples": float(len(examples)),
        "warm_up_loss": loss,
    }


def _trained(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    examples: Sequence[Example],
    config: WarmUpConfig,
    generator: torch.Generator,
) -> float:
    """Train in place; the last batch's loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0, betas=BETAS)
    loss = torch.tensor(float("nan"))
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * _slope(step, config.steps)
        chosen = torch.randint(len(examples), (config.batch_size,), generator=generator).tolist()
        batch = _padded([examples[row] for row in chosen], tokenizer)
        loss = model(**{name: part.to(model.device) for name, part in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def _slope(step: int, num_steps: int) -> float:
    """Up in a few steps, for AdamW's first ones know no scale; then straight down: a constant rate ends on noise."""
    return min(1.0, (step + 1) / RISING_STEPS) * (1 - 0.9 * step / num_steps)


def _examples(model: Any, tokenizer: Any, rows: Sequence[tuple[int, Row]], workload: LanguageConfig) -> list[Example]:
    """Prompt and answer of every solved row that fits the model's length."""
    column = workload.model.warm_up.completion_column
    solved = [(index, row) for index, row in rows if isinstance(row.get(column), str)]
    if not solved:
        return []
    prompts = make_prompts(solved, workload.data, tokenizer, max_tokens=workload.data.max_prompt_tokens)
    ends = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    examples = [
        (list(prompt.ids), tokenizer(_clean(prompt.columns[column]), add_special_tokens=False)["input_ids"] + ends)
        for prompt in prompts
    ]
    longest = getattr(model.config, "max_position_embeddings", None) or math.inf
    return [(prompt, answer) for prompt, answer in examples if len(prompt) + len(answer) <= longest]


def _clean(value: Any) -> str:
    return str(value).encode("utf-8", "ignore").decode()  # A lone surrogate is no character.


def _padded(examples: Sequence[Example], tokenizer: Any) -> dict[str, Tensor]:
    longest = max(len(prompt) + len(answer) for prompt, answer in examples)
    ids = torch.full((len(examples), longest), tokenizer.pad_token_id)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
    for row, (prompt, answer) in enumerate(examples):
        whole = torch.as_tensor(prompt + answer)
        ids[row, : len(whole)], mask[row, : len(whole)] = whole, 1
        labels[row, len(prompt) : len(whole)] = whole[len(prompt) :]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
