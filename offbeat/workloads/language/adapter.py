"""LoRA: a small adapter that learns in the place of the model that it is put on."""

import warnings
from typing import Any

import torch

from offbeat.config.language import LoraConfig
from offbeat.errors import ConfigError


def with_adapter(model: Any, config: LoraConfig, seed: int) -> Any:
    """The model with a fresh adapter, whose start comes from the seed; raises ConfigError when it finds no layer."""
    from peft import LoraConfig as Adapter
    from peft import get_peft_model

    adapter = Adapter(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.target_modules) or "all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # What transformers will rename is peft's to follow.
        torch.manual_seed(seed)
        try:
            return get_peft_model(model, adapter)
        except ValueError as error:
            raise ConfigError(f"workload.model.lora: {error}") from error
