"""A short supervised start: a few solved examples teach a model the form of an answer before rewards do the rest.

How many steps that takes differs from seed to seed, and from one processor to the next. With `stop_at` it ends where
enough of the solved rows that it does not learn from are answered right.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offbeat.config.language import LanguageConfig, WarmUpConfig
from offbeat.errors import ConfigError
from offbeat.workloads.language.prompts import make_prompts
from offbeat.workloads.language.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

IGNORED = -100  # The label of what is not learned, as transformers has it.
MAX_NORM = 1.0
# AdamW's usual second moment forgets too slowly for a start of a few hundred steps.
BETAS = (0.9, 0.95)
RISING_STEPS = 10
LOOK_STEPS = 10  # Between two looks at the rows that it does not learn from,
LOOK_EXAMPLES = 256  # and how many of those are looked at.

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
    """Train the model in place on the first `examples` rows that have a completion; returns what was measured.

    warm_up_steps, warm_up_examples, warm_up_loss: of the last batch; with `stop_at` also warm_up_right: the share of
    other solved rows that is answered right at the end. Only the completion and the end token are learned. Raises
    ConfigError when no row has one, or with `stop_at` no other row.
    """
    config = workload.model.warm_up
    solved = _examples(model, tokenizer, rows, workload)
    examples, others = solved[: config.examples], solved[config.examples :][:LOOK_EXAMPLES]
    if not examples:
        raise ConfigError(
            f"warm-up: no row has a text in the column {config.completion_column!r} that fits the model's length"
        )
    if config.stop_at is not None and not others:
        raise ConfigError(
            f"workload.model.warm_up.stop_at looks at solved training rows beyond the first {config.examples}"
            f" (examples), but only {len(solved)} have a completion that fits the model's length"
        )
    model.to(device).train()
    right = partial(share_right, model, tokenizer, others, batch_size=config.batch_size)
    # Dropout draws from the global state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        measures = _trained(model, tokenizer, examples, config, right=right)
    model.eval()
    if config.stop_at is not None:
        measures["warm_up_right"] = right()
        if measures["warm_up_right"] < config.stop_at:
            logger.warning(
                "warm-up: %.3f right after all %d steps, below stop_at %s",
                measures["warm_up_right"],
                config.steps,
                config.stop_at,
            )
    return {"warm_up_examples": float(len(examples)), **measures}


def _trained(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    examples: Sequence[Example],
    config: WarmUpConfig,
    *,
    right: Callable[[], float],
) -> dict[str, float]:
    """Train in place; the steps that were taken and the last batch's loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0, betas=BETAS)
    generator = torch.Generator().manual_seed(torch.initial_seed())
    loss, step = torch.tensor(float("nan")), 0
    while step < config.steps:
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * _slope(step, config.steps)
        chosen = torch.randint(len(examples), (config.batch_size,), generator=generator).tolist()
        loss = model(**_padded([examples[row] for row in chosen], tokenizer, model.device)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if config.stop_at is not None and step % LOOK_STEPS == 0 and right() >= config.stop_at:
            break
    return {"warm_up_steps": float(step), "warm_up_loss": float(loss.detach())}


@torch.no_grad()
def share_right(model: Any, tokenizer: Any, examples: Sequence[Example], *, batch_size: int) -> float:
    """The share of examples whose whole answer, end token included, is what the model would write greedily.

    That is so where each token is the likeliest after the right ones before it, so that one pass tells.
    """
    training, right = model.training, 0
    model.eval()
    for begin in range(0, len(examples), batch_size):
        batch = _padded(examples[begin : begin + batch_size], tokenizer, model.device)
        labels = batch.pop("labels")[:, 1:]
        likeliest = model(**batch).logits[:, :-1].argmax(-1)
        right += int(((likeliest == labels) | (labels == IGNORED)).all(-1).sum())
    model.train(training)
    return right / len(examples)


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


def _padded(examples: Sequence[Example], tokenizer: Any, device: torch.device) -> dict[str, Tensor]:
    longest = max(len(prompt) + len(answer) for prompt, answer in examples)
    ids = torch.full((len(examples), longest), tokenizer.pad_token_id)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
    for row, (prompt, answer) in enumerate(examples):
        whole = torch.as_tensor(prompt + answer)
        ids[row, : len(whole)], mask[row, : len(whole)] = whole, 1
        labels[row, len(prompt) : len(whole)] = whole[len(prompt) :]
    tensors = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {name: tensor.to(device) for name, tensor in tensors.items()}
