"""Tiny random checkpoints of DeepSeek V4 under the names of the published ones, in 32 or 16 bits, or quantised as they
are: linear layers in FP8, experts in FP8 or MXFP4, scales of a byte each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import _E4M3, Array, _stored, save, write_tokenizer

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 512,
    "hidden_size": 64,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "num_hash_layers": 2,
    "swiglu_limit": 1.0,
    "compress_ratios": [0, 4, 128, 4, 0, 0],
    "compress_rope_theta": 160000.0,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                     "beta_slow": 1},
    "max_position_embeddings": 1048576,
    "sliding_window": 128,
    # 64 heads: with few of them many keys have no score but 0.
    "index_n_heads": 64,
    "index_head_dim": 32,
    "index_topk": 24,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "num_nextn_predict_layers": 1,
    "attention_bias": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}  # fmt: skip


# What published checkpoints say of their linear layers, and sizes of which blocks of 128 are whole.
QUANTISED: dict[str, Any] = {
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
                            "weight_block_size": [128, 128]},
    "q_lora_rank": 128,
    "moe_intermediate_size": 128,
}  # fmt: skip


def write_deepseek_v4(folder: Path, *, seed: int = 3, multiplied_out: bool = False, **changes: Any) -> Path:
    """`changes` are keys of the config; `torch_dtype` is also that of what is not quantised. With `multiplied_out` what
    would be is stored in full, with the same values."""
    folder.mkdir(parents=True)
    config = CONFIG | changes
    kept = {key: value for key, value in config.items() if key not in ("quantization_config", "expert_dtype")}
    (folder / "config.json").write_text(json.dumps(kept if multiplied_out else config, indent=1))
    rng = np.random.default_rng(seed)
    tensors: dict[str, tuple[str, Array]] = {}
    for name, shape in shapes(config):
        dtype, values = _drawn(rng, name, shape, config)
        if "quantization_config" not in config or not _is_linear(name):
            tensors[name] = dtype, values
            continue
        rounded = _in_fp4 if config.get("expert_dtype") == "fp4" and ".experts." in name else _in_fp8
        codes, exponents, full = rounded(values)
        if multiplied_out:
            tensors[name] = "F32", full.astype(np.float32)
        else:
            tensors[name] = "F8_E4M3" if rounded is _in_fp8 else "I8", codes
            tensors[name.removesuffix("weight") + "scale"] = "F8_E8M0", (exponents + 127).astype(np.uint8)
    save(tensors, folder / "model.safetensors")
    write_tokenizer(folder, config["vocab_size"])
    return folder


def _is_linear(name: str) -> bool:
    parts = ("e_proj", "h_proj", "wq_a", "wq_b", "attn.wkv", "wo_a", "wo_b")
    return name.endswith(tuple(f"{part}.weight" for part in parts)) or "experts." in name


def _in_fp8(values: Array) -> tuple[Array, Array, Array]:
    """Codes, the exponents of blocks of 128 x 128, and what they stand for."""
    rows, columns = (-(-size // 128) for size in values.shape)
    exponents, codes, full = np.empty((rows, columns)), np.empty(values.shape, np.uint8), np.empty(values.shape)
    for i, j in np.ndindex(rows, columns):
        at = slice(128 * i, 128 * (i + 1)), slice(128 * j, 128 * (j + 1))
        exponents[i, j] = np.ceil(np.log2(np.abs(values[at]).max() / 448))
        codes[at], full[at] = _nearest(values[at] / 2 ** exponents[i, j], _E4M3, 128)
        full[at] *= 2 ** exponents[i, j]
    return codes, exponents, full


def _in_fp4(values: Array) -> tuple[Array, Array, Array]:
    """Two codes a byte, the first in its lower half; the exponents of 32 numbers of a row each; what they stand for."""
    grouped = values.reshape(len(values), -1, 32)
    exponents = np.ceil(np.log2(np.abs(grouped).max(-1, keepdims=True) / 6))
    codes, full = _nearest(grouped / 2**exponents, np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]), 8)
    pairs = codes.reshape(len(values), -1, 2)
    packed = (pairs[..., 0] | pairs[..., 1] << 4).astype(np.uint8).view(np.int8)
    return packed, exponents[..., 0], (full * 2**exponents).reshape(values.shape)


def _nearest(values: Array, grid: Array, sign: int) -> tuple[Array, Array]:
    """The places of the nearest numbers of a grid, with the bit of a sign, and these numbers."""
    above = np.searchsorted(grid, np.abs(values)).clip(1, len(grid) - 1)
    lower = np.abs(values) - grid[above - 1] < grid[above] - np.abs(values)
    place = np.where(lower, above - 1, above)
    return (place | (values < 0) * sign).astype(np.uint8), grid[place] * np.sign(values)


def _drawn(rng: np.random.Generator, name: str, shape: tuple[int, ...], config: dict[str, Any]) -> tuple[str, Array]:
    if name.endswith("tid2eid"):
        experts, top_k = config["n_routed_experts"], config["num_experts_per_tok"]
        return "I64", np.stack([rng.permutation(experts)[:top_k] for _ in range(shape[0])]).astype(np.int64)
    if name.endswith("norm.weight"):
        values = 1 + 0.1 * rng.standard_normal(shape)
    elif name.endswith("_scale"):
        values = np.full(shape, 0.5)
    else:
        values = rng.standard_normal(shape) * (0.3 if len(shape) == 1 else 1 / math.sqrt(shape[-1]))
    in_float32 = "hc_" in name or name.endswith(("attn_sink", "gate.bias", ".ape"))
    return _stored(values, "float32" if in_float32 else config["torch_dtype"], shape)


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of published checkpoints."""
    hidden, streams = config["hidden_size"], config["hc_mult"]
    yield "embed.weight", (config["vocab_size"], hidden)
    yield "head.weight", (config["vocab_size"], hidden)
    yield "norm.weight", (hidden,)
    yield "hc_head_fn", (streams, streams * hidden)
    yield "hc_head_base", (streams,)
    yield "hc_head_scale", (1,)
    mixed, ratios = (2 + streams) * streams, config["compress_ratios"]
    heads = [f"mtp.{number}." for number in range(config["num_nextn_predict_layers"])]
    for at in heads:
        yield f"{at}enorm.weight", (hidden,)
    blocks = [*(f"layers.{layer}." for layer in range(config["num_hidden_layers"])), *heads]
    for layer, at in enumerate(blocks):
        for part in ("attn", "ffn"):
            yield f"{at}{part}_norm.weight", (hidden,)
            yield f"{at}hc_{part}_fn", (mixed, streams * hidden)
            yield f"{at}hc_{part}_base", (mixed,)
            yield f"{at}hc_{part}_scale", (3,)
        yield from _attention(config, f"{at}attn.", ratios[layer] if layer < len(ratios) else 0)
        yield from _experts(config, f"{at}ffn.", hashed=layer < config["num_hash_layers"] and at not in heads)
    for at in heads:
        yield f"{at}hnorm.weight", (hidden,)
        yield f"{at}norm.weight", (hidden,)
        yield f"{at}e_proj.weight", (hidden, hidden)
        yield f"{at}h_proj.weight", (hidden, hidden)
        yield f"{at}hc_head_fn", (streams, streams * hidden)
        yield f"{at}hc_head_base", (streams,)
        yield f"{at}hc_head_scale", (1,)


def _attention(config: dict[str, Any], at: str, ratio: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, dim, rank = (
        config[key] for key in ("hidden_size", "num_attention_heads", "head_dim", "q_lora_rank")
    )  # fmt: skip
    groups, out_rank, index_dim = config["o_groups"], config["o_lora_rank"], config["index_head_dim"]
    yield f"{at}wq_a.weight", (rank, hidden)
    yield f"{at}q_norm.weight", (rank,)
    yield f"{at}wq_b.weight", (heads * dim, rank)
    yield f"{at}wkv.weight", (dim, hidden)
    yield f"{at}kv_norm.weight", (dim,)
    yield f"{at}wo_a.weight", (groups * out_rank, heads * dim // groups)
    yield f"{at}wo_b.weight", (hidden, groups * out_rank)
    yield f"{at}attn_sink", (heads,)
    if ratio:
        yield from _compressor(hidden, ratio, f"{at}compressor.", dim)
    if ratio == 4:
        yield f"{at}indexer.wq_b.weight", (config["index_n_heads"] * index_dim, rank)
        yield f"{at}indexer.weights_proj.weight", (config["index_n_heads"], hidden)
        yield from _compressor(hidden, ratio, f"{at}indexer.compressor.", index_dim)


def _compressor(hidden: int, ratio: int, at: str, dim: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = 2 * dim if ratio == 4 else dim
    yield f"{at}wkv.weight", (width, hidden)
    yield f"{at}wgate.weight", (width, hidden)
    yield f"{at}ape", (ratio, width)
    yield f"{at}norm.weight", (dim,)


def _experts(config: dict[str, Any], at: str, *, hashed: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, count = (config[key] for key in ("hidden_size", "moe_intermediate_size", "n_routed_experts"))
    yield f"{at}gate.weight", (count, hidden)
    if hashed:
        yield f"{at}gate.tid2eid", (config["vocab_size"], config["num_experts_per_tok"])
    else:
        yield f"{at}gate.bias", (count,)
    for expert in ("shared_experts", *(f"experts.{number}" for number in range(count))):
        yield f"{at}{expert}.w1.weight", (inner, hidden)
        yield f"{at}{expert}.w3.weight", (inner, hidden)
        yield f"{at}{expert}.w2.weight", (hidden, inner)
