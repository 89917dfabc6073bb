"""Do prompts, tokenizer, adapter and model fit each other? Whatever is at hand is asked before anything starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from offbeat.config.language import LanguageConfig
from offbeat.errors import ConfigError
from offbeat.workloads.language.adapter import with_adapter
from offbeat.workloads.language.made_model import described, made_tokenizer
from offbeat.workloads.language.prompts import Prompt, Split, check_known, make_prompts
from offbeat.workloads.language.rows import Row
from offbeat.workloads.language.sources import refused
from offbeat.workloads.language.tokenizers import with_pad

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


def fitting_prompts(
    rows: Sequence[tuple[int, Row]],
    workload: LanguageConfig,
    tokenizer: "PreTrainedTokenizerBase",
    model: "PreTrainedConfig",
) -> list[Prompt]:
    """The rows' prompts, as long as the model's positions allow beside the longest completion; raises ConfigError."""
    prompts = make_prompts(rows, workload.data, tokenizer, max_tokens=_most_prompt_tokens(workload, model))
    check_known(prompts, model.get_text_config().vocab_size, tokenizer)
    return prompts


def check_fit(workload: LanguageConfig, split: Split) -> None:
    """Raise ConfigError for a prompt, a chat template or an adapter that the model cannot take.

    Only a model in a folder or one to be made is at hand; what must be fetched or unpacked is asked when it is there.
    """
    if (found := _at_hand(workload, split)) is None:
        return
    tokenizer, model = found
    for rows in (split.train, split.validation):
        fitting_prompts(rows, workload, tokenizer, model)
    if workload.model.lora.rank:
        with_adapter(_without_weights(model, workload.model.source), workload.model.lora, seed=0)


def _at_hand(workload: LanguageConfig, split: Split) -> "tuple[PreTrainedTokenizerBase, PreTrainedConfig] | None":
    source = workload.model.source
    if source is None:
        tokenizer = made_tokenizer(workload.model.made, split)
        return tokenizer, described(workload.model.made, tokenizer)
    return _opened(source) if Path(source).is_dir() else None


def _opened(folder: str) -> "tuple[PreTrainedTokenizerBase, PreTrainedConfig]":
    from transformers import AutoConfig, AutoTokenizer

    with refused(folder):
        model = AutoConfig.from_pretrained(folder, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return with_pad(tokenizer), model


def _without_weights(model: "PreTrainedConfig", source: str | None) -> Any:
    from transformers import AutoModelForCausalLM

    with refused(source), torch.device("meta"):
        return AutoModelForCausalLM.from_config(model)


def _most_prompt_tokens(workload: LanguageConfig, model: "PreTrainedConfig") -> int:
    """The configured bound, or what the model's positions leave beside the longest completion."""
    wanted, written = workload.data.max_prompt_tokens, workload.sampling.max_new_tokens
    positions = getattr(model, "max_position_embeddings", None)
    left = positions - written if positions else wanted
    if left < 1:
        raise ConfigError(
            f"workload.sampling.max_new_tokens: got {written}, but the model has {positions} positions for prompt and"
            " completion together"
        )
    return min(wanted, left)
