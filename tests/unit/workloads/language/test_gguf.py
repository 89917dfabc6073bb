"""A GGUF file as the source of a model: its numbers and its tokenizer come through."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from offbeat.config import RunConfig
from offbeat.config.language import MadeModelConfig, ModelConfig
from offbeat.errors import ConfigError
from offbeat.workloads.language.base_model import open_model, open_tokenizer, prepare_base
from offbeat.workloads.language.tokenizers import train_tokenizer
from tests.unit.workloads.language.small_models import SHAPES, reference_logprobs, sections

gguf = pytest.importorskip("gguf")
SHAPE = {**SHAPES["llama"], "num_hidden_layers": 1, "num_key_value_heads": 2}
HEADS = 2
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}


def _interleaved(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """GGUF keeps the two halves of a rotary head side by side."""
    half = weights.shape[0] // HEADS // 2
    return weights.reshape(HEADS, 2, half, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)


def _written(path: Path, model: Any, tokenizer: Any) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_block_count(1)
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(SHAPE["hidden_size"] // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    described = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(described["vocab"], key=described["vocab"].get))
    writer.add_token_merges([" ".join(pair) for pair in described["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        writer.add_tensor(NAMES[name], _interleaved(values) if "q_proj" in name or "k_proj" in name else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_becomes_the_base_folder(tmp_path: Path) -> None:
    texts = [f"{n} + 1 = {n + 1}" for n in range(50)]
    tokenizer = train_tokenizer(texts, MadeModelConfig(tokenizer="bpe", vocabulary_size=280))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        described = AutoConfig.for_model(
            "llama", vocab_size=len(tokenizer), initializer_range=0.4, rms_norm_eps=1e-6, **SHAPE
        )
        model = AutoModelForCausalLM.from_config(described).eval()
    _written(tmp_path / "small.gguf", model, tokenizer)
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in texts))
    workload = {
        "kind": "language",
        "model": {"source": str(tmp_path / "small.gguf")},
        "data": {"train": str(tmp_path / "rows.jsonl")},
    }
    config = RunConfig.model_validate({"workload": workload})
    prepare_base(config, sections(config)[0], tmp_path / "base")

    opened, own = open_model(tmp_path / "base", ModelConfig(), device="cpu"), open_tokenizer(tmp_path / "base")
    ids = tokenizer("7 + 1 = ")["input_ids"]
    assert own("7 + 1 = ", add_special_tokens=False)["input_ids"] == ids
    assert own.decode(ids) == "7 + 1 = "
    assert own.pad_token_id is not None
    expected = reference_logprobs(model, ids[:2], ids[2:])
    torch.testing.assert_close(reference_logprobs(opened.eval(), ids[:2], ids[2:]), expected, rtol=1e-4, atol=1e-5)


def test_a_damaged_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": str(n)}) for n in range(50)))
    for content in (b"damaged", b"GGUF" + bytes(200)):
        (tmp_path / "small.gguf").write_bytes(content)
        workload = {
            "kind": "language",
            "model": {"source": str(tmp_path / "small.gguf")},
            "data": {"train": str(tmp_path / "rows.jsonl")},
        }
        config = RunConfig.model_validate({"workload": workload})
        with pytest.raises(ConfigError, match="cannot be opened"):
            prepare_base(config, sections(config)[0], tmp_path / "base")
