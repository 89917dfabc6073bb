"""A language model that writes: its parameters come from published weights, everything else from the run's base."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from offbeat.errors import CheckpointError, WorkloadError
from offbeat.workloads.base import Weights
from offbeat.workloads.language.sharding import piece_of, whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


FORMAT = "offbeat-language-1"
SETTINGS_FILE = "policy.json"


class LanguagePolicy:
    """A transformers model with its tokenizer. `trained`: the parameters that learning changes, by name."""

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        *,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.model: Any = model.eval()
        self.settings = dict(settings or {})
        self.tokenizer: Any = tokenizer
        self.trained = trained_parameters(model)
        self.end_ids = end_ids(model, tokenizer)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    @torch.no_grad()
    def load_weights(self, weights: Weights) -> None:
        """Take over published parameters; raises WorkloadError when names or shapes differ, or on NaN."""
        if weights.keys() != self.trained.keys():
            differing = sorted(weights.keys() ^ self.trained.keys())
            raise WorkloadError(f"weights differ in {differing[:5]} and {max(0, len(differing) - 5)} more names")
        for name, tensor in weights.items():
            own = self.trained[name]
            if tensor.shape != own.shape:
                raise WorkloadError(f"weights {name!r}: got {tuple(tensor.shape)}, expected {tuple(own.shape)}")
            if not bool(torch.isfinite(tensor).all()):
                raise WorkloadError(f"weights {name!r} hold NaN or infinity; they are refused")
        for name, tensor in weights.items():
            self.trained[name].copy_(piece_of(tensor, self.trained[name]))

    def weights(self) -> Weights:
        """The trained parameters, as CPU clones; where they are cut, all processes of the team must ask together."""
        return {name: whole(tensor.detach()).cpu().clone() for name, tensor in self.trained.items()}

    def save(self, folder: Path, weights: Weights | None = None) -> None:
        """Write a folder that transformers opens: the model, or with LoRA its adapter alone, and the tokenizer.

        `policy.json` beside them says how prompts become text and how text is sampled. weights: what `weights` gave,
        for a model that is cut.
        """
        folder.mkdir(parents=True, exist_ok=True)
        given = {} if weights is None else {"state_dict": dict(weights)}
        try:
            self.model.save_pretrained(folder, safe_serialization=True, **given)
        except SafetensorError as error:
            raise OSError(f"{folder.name}: {error}") from error
        self.tokenizer.save_pretrained(folder)
        document = {"format": FORMAT, "settings": self.settings}
        (folder / SETTINGS_FILE).write_text(json.dumps(document, indent=2), encoding="utf-8")


def trained_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """Parameters that learning changes: all, or with LoRA those of the adapter; tied ones once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a completion: the tokenizer's end of text, and those of the model's generation settings."""
    own = model.generation_config.eos_token_id if model.generation_config is not None else None
    found = [tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])]
    return frozenset(token for token in found if token is not None)


def open_policy(folder: Path, *, device: str = "cpu") -> LanguagePolicy:
    """The policy that `LanguagePolicy.save` wrote, its adapter on its base model; raises CheckpointError."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        document = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise CheckpointError(f"{folder / SETTINGS_FILE}: got format {document['format']!r}, expected {FORMAT}")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True).to(device)
        return LanguagePolicy(model, AutoTokenizer.from_pretrained(folder), settings=document["settings"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"no policy can be opened in {folder}: {type(error).__name__}: {error}") from error
