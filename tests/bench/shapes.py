"""Models of published shapes with random weights, made on the spot, and what a step must read of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.tiny import (
    BASE,
    FAMILIES,
    IN_FLOAT32,
    LATENT,
    is_hybrid,
    is_linear,
    norm_centre,
    tensor_shapes,
    write_tokenizer,
)

ITEM = 2  # bytes of a weight, and of a number in the caches: bfloat16
STATE_ITEM = 4  # of a number in a recurrent state: float32
SHARD_BYTES = 4 << 30
SCALE = 0.02
POOL = 1 << 24  # random weights; larger than any cache of a processor, and drawn in half a second


class Shape(NamedTuple):
    family: str
    config: dict[str, Any]

    @property
    def full_config(self) -> dict[str, Any]:
        return BASE | FAMILIES[self.family] | {"torch_dtype": "bfloat16"} | self.config

    def with_layers(self, layers: int) -> Shape:
        return Shape(self.family, self.config | {"num_hidden_layers": layers})


QWEN3: dict[str, Any] = {"vocab_size": 151_936, "head_dim": 128, "max_position_embeddings": 40_960, "rope_theta": 1e6}
SHAPES = {
    "llama-27m": Shape("llama", {
        "vocab_size": 32_000, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }),
    "tinyllama-1.1b": Shape("llama", {
        "vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
        "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32_768,
    }),
    "qwen3-8b": Shape("qwen3", QWEN3 | {
        "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8,
    }),
    "qwen3-30b-a3b": Shape("qwen3_moe", QWEN3 | {
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
    }),
    "qwen3-next": Shape("qwen3_next", {
        "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25,
        "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "max_position_embeddings": 262_144,
        "rope_theta": 1e7,
    }),
    # With 64 experts in place of 256, whose layers would take 23 GB each, and one dense layer in place of three.
    "deepseek-v3": Shape("deepseek_v3", {
        "vocab_size": 129_280, "hidden_size": 7168, "intermediate_size": 18_432, "num_hidden_layers": 61,
        "first_k_dense_replace": 1, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": 8, "topk_group": 4,
        "max_position_embeddings": 163_840,
        "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
                         "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    }),
}  # fmt: skip


def write(folder: Path, shape: Shape) -> Path:
    """A checkpoint in bfloat16, in shards as published ones are: a second for each GB or so."""
    folder.mkdir(parents=True)
    config = shape.full_config
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder, config["vocab_size"])
    shards = list(_shards(tensor_shapes(config)))
    pool = _Pool()
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / name, shard, config, pool)
        places |= dict.fromkeys(shard, name)
    total = sum(_bytes(name, size) for shard in shards for name, size in shard.items())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def read_by_step(shape: Shape, streams: int, context: int) -> int:
    """Bytes that a decode step of `streams` tokens, each after `context` others, has to read: the weights, of experts
    the share that uniform routing reaches on average, and what the caches hold. States are written back as well."""
    config = shape.full_config
    experts = config.get("num_experts") or config.get("n_routed_experts")
    reached = 1 - (1 - config["num_experts_per_tok"] / experts) ** streams if experts else 1
    weights = 0.0
    for name, size in tensor_shapes(config):
        if name == "model.embed_tokens.weight" and not config["tie_word_embeddings"]:
            continue  # a row for each token
        weights += _bytes(name, size) * (reached if ".experts." in name else 1)
    token, states = _cached(config)
    return round(weights + streams * (token * context + 2 * states))


def _cached(config: dict[str, Any]) -> tuple[int, int]:
    """Bytes for each token of a stream, and for its states, whatever its length."""
    layers = config["num_hidden_layers"]
    if config["model_type"] in LATENT:
        return ITEM * layers * (config["kv_lora_rank"] + config["qk_rope_head_dim"]), 0
    linear = sum(is_linear(config, layer) for layer in range(layers))
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token = ITEM * (layers - linear) * 2 * config["num_key_value_heads"] * head_dim
    return token, linear * _state(config) if is_hybrid(config) else 0


def _state(config: dict[str, Any]) -> int:
    """Of a layer of the gated delta rule: a matrix for each value head, and the last inputs of the convolution."""
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    channels = 2 * config["linear_num_key_heads"] * key + config["linear_num_value_heads"] * value
    matrices = config["linear_num_value_heads"] * key * value
    return STATE_ITEM * matrices + ITEM * channels * (config["linear_conv_kernel_dim"] - 1)


Tensors = dict[str, tuple[int, ...]]


def _shards(tensors: Iterator[tuple[str, tuple[int, ...]]]) -> Iterator[Tensors]:
    shard: Tensors = {}
    size = 0
    for name, shape in tensors:
        if size + _bytes(name, shape) > SHARD_BYTES and shard:
            yield shard
            shard, size = {}, 0
        shard[name] = shape
        size += _bytes(name, shape)
    yield shard


def _bytes(name: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * (4 if name.endswith(IN_FLOAT32) else ITEM)


def _write_shard(path: Path, tensors: Tensors, config: dict[str, Any], pool: _Pool) -> None:
    ends = np.cumsum([0, *(_bytes(name, shape) for name, shape in tensors.items())]).tolist()
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, shape), (begin, end) in zip(tensors.items(), pairwise(ends), strict=True):
        dtype = "F32" if name.endswith(IN_FLOAT32) else "BF16"
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors.items():
            if name.endswith("norm.weight"):
                file.write(_bfloat16(np.full(shape, norm_centre(name, config), np.float32)).data)
            else:
                for part in pool.take(math.prod(shape)):
                    file.write((part.astype(np.uint32) << 16 if name.endswith(IN_FLOAT32) else part).data)


def _bfloat16(values: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


class _Pool:
    """Normal bfloat16 numbers that are given out in turn: drawing billions would take minutes."""

    def __init__(self) -> None:
        self._values = _bfloat16(np.random.default_rng(0).standard_normal(POOL, np.float32) * np.float32(SCALE))
        self._at = 0

    def take(self, count: int) -> Iterator[np.ndarray[Any, np.dtype[np.uint16]]]:
        while count:
            part = self._values[self._at : self._at + count]
            yield part
            count -= len(part)
            # One short of the end, so that the next time round every matrix begins elsewhere.
            self._at = (self._at + len(part)) % (POOL - 1)
