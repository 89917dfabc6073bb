"""Version 0: made the same for the same seed, there whole or not at all, and with LoRA little beside an adapter."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel, LlamaForCausalLM

from offbeat.config import RunConfig
from offbeat.config.language import ModelConfig
from offbeat.errors import CheckpointError, ConfigError, WorkloadError
from offbeat.workloads.language.base_model import open_model, open_tokenizer, prepare_base
from offbeat.workloads.language.policy import LanguagePolicy, open_policy
from tests.unit.workloads.language.small_models import make_base, make_tokenizer, reference_logprobs, sections

MADE = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_length": 32}
WARM_UP = {"steps": 6, "batch_size": 4, "learning_rate": 0.01}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [{"prompt": f"{n} + 1 = ", "completion": str(n + 1), "n": n} for n in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


def _config(data: Path, *, seed: int = 0, made: Mapping[str, Any] | None = None, **model: Any) -> RunConfig:
    workload = {
        "kind": "language",
        "model": {"made": {**MADE, **(made or {})}, **model},
        "data": {"train": str(data), "max_prompt_tokens": 16},
    }
    return RunConfig.model_validate({"seed": seed, "workload": workload})


def _prepared(config: RunConfig, folder: Path) -> dict[str, float]:
    return prepare_base(config, sections(config)[0], folder)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def _equal(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("warm_up", [{}, WARM_UP], ids=["cold", "warm"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_seed_decides_the_model(data: Path, tmp_path: Path, architecture: str, warm_up: dict[str, Any]) -> None:
    made = {"architecture": architecture}
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        # What else has been drawn in this process must not matter.
        torch.rand(seed + len(name))
        _prepared(_config(data, seed=seed, made=made, warm_up=warm_up), tmp_path / name)
    first, again, other = (_weights(tmp_path / name) for name in ("first", "again", "other"))
    assert _equal(first, again)
    assert not _equal(first, other)
    vocabularies = {(tmp_path / name / "tokenizer.json").read_bytes() for name in ("first", "again", "other")}
    assert len(vocabularies) == 1


@pytest.mark.parametrize(("architecture", "kind"), [("llama", LlamaForCausalLM), ("gpt2", GPT2LMHeadModel)])
def test_a_made_model_has_the_shape_that_was_asked_for(
    data: Path, tmp_path: Path, architecture: str, kind: type
) -> None:
    state = torch.get_rng_state()
    _prepared(_config(data, made={"architecture": architecture}), tmp_path / "base")
    assert torch.equal(torch.get_rng_state(), state)
    model: Any = open_model(tmp_path / "base", ModelConfig(), device="cpu")
    tokenizer = open_tokenizer(tmp_path / "base")
    assert type(model).__name__ == kind.__name__
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.hidden_size == 16
    assert model.config.num_hidden_layers == 1
    assert model.config.max_position_embeddings == 32
    assert LanguagePolicy(model, tokenizer).end_ids == {tokenizer.eos_token_id}


def test_a_bpe_tokenizer_learns_from_the_training_rows(data: Path, tmp_path: Path) -> None:
    _prepared(_config(data, made={"tokenizer": "bpe", "vocabulary_size": 270}), tmp_path / "base")
    tokenizer = open_tokenizer(tmp_path / "base")
    assert len(tokenizer) <= 270
    ids = tokenizer("7 + 1 = ")["input_ids"]
    assert tokenizer.decode(ids) == "7 + 1 = "
    assert len(ids) < 8  # " + 1" is met often


def test_data_with_lone_surrogates_beside_the_prompt_still_make_a_tokenizer(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "answer": "\ud83d"} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for kind in ("characters", "bpe"):
        _prepared(_config(tmp_path / "rows.jsonl", made={"tokenizer": kind, "vocabulary_size": 300}), tmp_path / kind)
        assert open_tokenizer(tmp_path / kind)("7")["input_ids"]


def test_bfloat16_is_kept(data: Path, tmp_path: Path) -> None:
    _prepared(_config(data, dtype="bfloat16"), tmp_path / "base")
    assert open_model(tmp_path / "base", ModelConfig(dtype="bfloat16"), device="cpu").dtype == torch.bfloat16


def test_a_folder_that_is_there_is_taken_as_it_is(data: Path, tmp_path: Path) -> None:
    _prepared(_config(data, seed=1), tmp_path / "base")
    before = _weights(tmp_path / "base")
    _prepared(_config(data, seed=2), tmp_path / "base")
    assert _equal(before, _weights(tmp_path / "base"))


def test_a_half_made_folder_is_not_taken(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, folder = _config(data), tmp_path / "base"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", _killed)
        with pytest.raises(KeyboardInterrupt):
            _prepared(config, folder)
    assert not folder.exists()
    assert list(tmp_path.glob("base.*"))
    _prepared(config, folder)
    assert _weights(folder)


def _killed(*_: Any, **__: Any) -> str:
    raise KeyboardInterrupt


def test_the_warm_up_teaches_and_is_measured_once(data: Path, tmp_path: Path) -> None:
    config = _config(data, warm_up={**WARM_UP, "steps": 80, "examples": 10})
    measures = _prepared(config, tmp_path / "base")
    assert measures["warm_up_steps"] == 80
    assert measures["warm_up_examples"] == 10
    assert _prepared(config, tmp_path / "base") == measures
    # 103 tokens are equally likely at the start: ln 103 = 4.6.
    assert measures["warm_up_loss"] < 2.5
    cold = _config(data)
    assert _prepared(cold, tmp_path / "cold") == {}
    tokenizer = open_tokenizer(tmp_path / "base")
    prompt, answer = (tokenizer(text)["input_ids"] for text in ("7 + 1 = ", "8"))
    written = [*answer, tokenizer.eos_token_id]
    warm, before = (
        reference_logprobs(open_model(tmp_path / name, ModelConfig(), device="cpu"), prompt, written).sum()
        for name in ("base", "cold")
    )
    assert warm > before


def test_a_warm_up_without_solved_rows_says_so(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": str(n)}) for n in range(40)))
    with pytest.raises(ConfigError, match="no row has a text in the column 'completion'"):
        _prepared(_config(tmp_path / "rows.jsonl", warm_up=WARM_UP), tmp_path / "base")
    assert not (tmp_path / "base").exists()


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_examples_beyond_the_models_length_are_left_out_of_the_warm_up(tmp_path: Path, architecture: str) -> None:
    rows = [{"prompt": f"{n}", "completion": "x" * (100 if n % 2 else 3)} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = _config(tmp_path / "rows.jsonl", warm_up=WARM_UP, made={"architecture": architecture})
    assert 0 < _prepared(config, tmp_path / "base")["warm_up_examples"] < 25


def test_a_source_folder_is_copied_whole(base: Path, data: Path, tmp_path: Path) -> None:
    _prepared(_config(data, source=str(base)), tmp_path / "base")
    assert _equal(_weights(base), _weights(tmp_path / "base"))


@pytest.mark.parametrize("source", ["/nowhere/model", "/nowhere/model.gguf", "offbeat/no-such-model"])
def test_a_source_that_cannot_be_opened(data: Path, tmp_path: Path, source: str) -> None:
    with pytest.raises(ConfigError, match=f"workload.model.source: {source} cannot be opened"):
        _prepared(_config(data, source=source), tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_a_damaged_source_cannot_be_opened(data: Path, tmp_path: Path) -> None:
    source = make_base(tmp_path / "source")
    (source / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="cannot be opened"):
        _prepared(_config(data, source=str(source)), tmp_path / "base")


@pytest.mark.parametrize("damage", ["model.safetensors", "config.json"])
def test_a_damaged_base_folder_is_refused(tmp_path: Path, damage: str) -> None:
    folder = make_base(tmp_path)
    (folder / damage).write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="no model can be opened"):
        open_model(folder, ModelConfig(), device="cpu")


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = make_base(tmp_path)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="no tokenizer can be opened"):
        open_tokenizer(folder)
    with pytest.raises(CheckpointError, match="no tokenizer can be opened"):
        open_tokenizer(tmp_path / "nowhere")


def test_lora_trains_the_adapter_alone_from_a_seeded_start(base: Path) -> None:
    lora = ModelConfig.model_validate({"lora": {"rank": 4}})
    first, again, other = (open_model(base, lora, device="cpu", seed=seed) for seed in (1, 1, 2))
    tokenizer = open_tokenizer(base)
    policy = LanguagePolicy(first, tokenizer)
    assert policy.trained
    assert all("lora_" in name for name in policy.trained)
    assert _equal(policy.weights(), LanguagePolicy(again, tokenizer).weights())
    assert not _equal(policy.weights(), LanguagePolicy(other, tokenizer).weights())
    # The second matrix starts at 0: at version 0 the policy is the base model.
    plain = open_model(base, ModelConfig(), device="cpu")
    assert torch.equal(
        reference_logprobs(first.eval(), [20, 21], [22]), reference_logprobs(plain.eval(), [20, 21], [22])
    )


def test_lora_on_layers_that_are_not_there(base: Path) -> None:
    lora = ModelConfig.model_validate({"lora": {"rank": 4, "target_modules": ["no_such"]}})
    with pytest.raises(ConfigError, match=r"workload\.model\.lora: .*no_such"):
        open_model(base, lora, device="cpu")


def _trained_adapter(base: Path) -> LanguagePolicy:
    lora = ModelConfig.model_validate({"lora": {"rank": 4, "target_modules": ["q_proj", "v_proj"]}})
    policy = LanguagePolicy(open_model(base, lora, device="cpu"), open_tokenizer(base), settings={"n": 1})
    with torch.no_grad():
        for parameter in policy.trained.values():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    return policy


def test_a_saved_adapter_opens_with_transformers_and_peft(base: Path, tmp_path: Path) -> None:
    policy = _trained_adapter(base)
    policy.save(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert len(saved) == len(policy.trained)
    expected = reference_logprobs(policy.model, [20, 21], [22, 23])
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    onto = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path)
    for model in (opened, onto, open_policy(tmp_path).model):
        torch.testing.assert_close(reference_logprobs(model.eval(), [20, 21], [22, 23]), expected)
    assert AutoTokenizer.from_pretrained(tmp_path)("2 + 2")["input_ids"] == policy.tokenizer("2 + 2")["input_ids"]
    assert open_policy(tmp_path).settings == {"n": 1}


@pytest.mark.parametrize("damaged", ["model.safetensors", "config.json", "policy.json", "tokenizer.json"])
def test_a_damaged_policy_folder_is_refused(base: Path, tmp_path: Path, damaged: str) -> None:
    LanguagePolicy(open_model(base, ModelConfig(), device="cpu"), open_tokenizer(base)).save(tmp_path)
    assert open_policy(tmp_path).trained
    (tmp_path / damaged).write_bytes(b"{")
    with pytest.raises(CheckpointError, match="no policy can be opened"):
        open_policy(tmp_path)
    with pytest.raises(CheckpointError, match="no policy can be opened"):
        open_policy(tmp_path / "nowhere")


def test_weights_are_refused_whole(base: Path) -> None:
    policy = LanguagePolicy(open_model(base, ModelConfig(), device="cpu"), open_tokenizer(base))
    good, name = dict(policy.weights()), next(iter(policy.trained))
    bad = {
        "weights differ in": {key: tensor for key, tensor in good.items() if key != name},
        "hold NaN or infinity": good | {name: torch.full_like(good[name], float("nan"))},
        "expected": good | {name: good[name][:-1]},
    }
    for fault, weights in bad.items():
        changed = {key: tensor + 1 for key, tensor in weights.items()}
        with pytest.raises(WorkloadError, match=fault):
            policy.load_weights(changed)
        assert _equal(policy.weights(), good)


def test_every_end_of_the_model_and_of_the_tokenizer_counts(base: Path) -> None:
    model, tokenizer = open_model(base, ModelConfig(), device="cpu"), make_tokenizer()
    model.generation_config.eos_token_id = [5, 6]
    assert LanguagePolicy(model, tokenizer).end_ids == {tokenizer.eos_token_id, 5, 6}
    model.generation_config.eos_token_id = None
    assert LanguagePolicy(model, tokenizer).end_ids == {tokenizer.eos_token_id}
    tokenizer.eos_token = None
    assert LanguagePolicy(model, tokenizer).end_ids == frozenset()


def test_tied_parameters_are_published_once(tmp_path: Path) -> None:
    base = make_base(tmp_path, "gpt2")
    policy = LanguagePolicy(open_model(base, ModelConfig(), device="cpu"), open_tokenizer(base))
    assert "lm_head.weight" not in policy.weights()
    assert "transformer.wte.weight" in policy.weights()
    changed = {name: tensor + 1 for name, tensor in policy.weights().items()}
    policy.load_weights(changed)
    assert torch.equal(policy.model.lm_head.weight, changed["transformer.wte.weight"])


def _damaged(base: Path, folder: Path, **described: Any) -> Path:
    """A copy of a model whose config.json says something else than its weights."""
    shutil.copytree(base, folder)
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | described))
    return folder


def test_a_folder_without_all_the_weights_is_refused(base: Path, data: Path, tmp_path: Path) -> None:
    source = _damaged(base, tmp_path / "more", num_hidden_layers=3)
    with pytest.raises(ConfigError, match=r"lacks 9 of the model's weights, model\.layers\.2"):
        _prepared(_config(data, source=str(source)), tmp_path / "base")
    assert not (tmp_path / "base").exists()


@pytest.mark.parametrize("described", [{"hidden_size": 32}, {"vocab_size": 7}])
def test_weights_of_another_shape_are_refused(
    base: Path, data: Path, tmp_path: Path, described: dict[str, Any]
) -> None:
    source = _damaged(base, tmp_path / "other", **described)
    with pytest.raises(ConfigError, match=r"workload.model.source: .* cannot be opened: RuntimeError"):
        _prepared(_config(data, source=str(source)), tmp_path / "base")


def test_a_tokenizer_file_that_is_none_is_refused(base: Path, data: Path, tmp_path: Path) -> None:
    source = _damaged(base, tmp_path / "empty")
    (source / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"workload.model.source: .* cannot be opened"):
        _prepared(_config(data, source=str(source)), tmp_path / "base")


def test_a_lone_surrogate_in_a_solved_answer_is_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "completion": f"{n}\ud800"} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    measures = _prepared(_config(tmp_path / "rows.jsonl", warm_up=WARM_UP), tmp_path / "base")
    assert measures["warm_up_examples"] > 0
