"""Tiny random checkpoints in Hugging Face format, made without torch, for tests that need a real model folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
}
BASE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "float32",
    "initializer_range": 0.02,
}
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_checkpoint(
    folder: Path, family: str = "llama", *, dtype: str = "float32", seed: int = 0, scale: float = 0.2, **config: Any
) -> Path:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json; keys in `config` override.

    Weights are normal with a standard deviation of `scale`: large enough that two tokens rarely tie.
    """
    folder.mkdir(parents=True, exist_ok=True)
    merged = BASE | FAMILIES[family] | {"torch_dtype": dtype} | config
    (folder / "config.json").write_text(json.dumps(merged, indent=1))
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(merged):
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * rng.standard_normal(shape)
        else:
            values = scale * rng.standard_normal(shape)
        tensors[name] = values.astype(np.float32)
    if dtype == "float32":
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        _save_half(tensors, folder / "model.safetensors", dtype)
    write_tokenizer(folder, merged["vocab_size"])
    return folder


def _save_half(tensors: dict[str, np.ndarray], path: Path, dtype: str) -> None:
    if dtype == "float16":
        save_file({name: t.astype(np.float16) for name, t in tensors.items()}, path, metadata={"format": "pt"})
        return
    assert dtype == "bfloat16", dtype
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, offset = [], 0
    for name, tensor in tensors.items():
        raw = (tensor.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # truncation is rounding enough for a test
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(raw)]}
        parts.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def tensor_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes that transformers gives a dense Llama-like model."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    kind = config["model_type"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            yield at + f"self_attn.{name}_proj.weight", (rows * head_dim, hidden)
            if kind == "qwen2" or config.get("attention_bias"):
                yield at + f"self_attn.{name}_proj.bias", (rows * head_dim,)
        yield at + "self_attn.o_proj.weight", (hidden, heads * head_dim)
        if kind == "llama" and config.get("attention_bias"):
            yield at + "self_attn.o_proj.bias", (hidden,)
        if kind == "qwen3":
            yield at + "self_attn.q_norm.weight", (head_dim,)
            yield at + "self_attn.k_norm.weight", (head_dim,)
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            yield at + f"mlp.{name}_proj.weight", shape
            if config.get("mlp_bias"):
                yield at + f"mlp.{name}_proj.bias", shape[:1]
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """A byte-level tokenizer without merges: ids 0..2 are special, then the chat roles, then one id a byte."""
    special = ["<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*special, *alphabet])}
    for i in range(len(vocab), vocab_size):
        vocab[f"<unused{i}>"] = i
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
