"""A small model made on the spot: its shape from the configuration, its tokenizer from the data, its weights random."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from offbeat.config.language import MadeModelConfig, ModelConfig
from offbeat.workloads.language.prompts import Messages, Split, plain_conversation
from offbeat.workloads.language.rows import Row
from offbeat.workloads.language.tokenizers import train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def made_tokenizer(made: MadeModelConfig, split: Split) -> "PreTrainedTokenizerBase":
    """A tokenizer trained on every text of the training rows."""
    return train_tokenizer(_texts(row for _, row in split.train), made)


def made_model(config: ModelConfig, tokenizer: "PreTrainedTokenizerBase", seed: int) -> "PreTrainedModel":
    """A model of random weights, which come from the seed alone."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(described(config.made, tokenizer), dtype=getattr(torch, config.dtype))


def described(made: MadeModelConfig, tokenizer: "PreTrainedTokenizerBase") -> "PreTrainedConfig":
    """The shape of a model to be made, as transformers describes it."""
    from transformers import AutoConfig

    shape = {
        "llama": {
            "hidden_size": made.hidden_size,
            "intermediate_size": made.intermediate_size,
            "num_hidden_layers": made.num_layers,
            "num_attention_heads": made.num_heads,
            "num_key_value_heads": made.num_heads,
            "max_position_embeddings": made.max_length,
        },
        "gpt2": {
            "n_embd": made.hidden_size,
            "n_inner": made.intermediate_size,
            "n_layer": made.num_layers,
            "n_head": made.num_heads,
            "n_positions": made.max_length,
        },
    }[made.architecture]
    return AutoConfig.for_model(
        made.architecture,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **shape,
    )


def _texts(rows: Iterable[Row]) -> Iterable[str]:
    """Every text of the rows, chat messages among them, for a tokenizer to learn from."""
    for row in rows:
        for value in row.values():
            if isinstance(value, str):
                yield value.encode("utf-8", "ignore").decode()  # A lone surrogate is no character.
            elif isinstance(value, list) and value and isinstance(value[0], dict) and "content" in value[0]:
                messages: Messages = value
                yield plain_conversation(messages)
