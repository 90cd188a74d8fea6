"""Models of published shapes with random weights, made on the spot, and what a step must read of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.tiny import BASE, FAMILIES, FP8, IN_FLOAT32, norm_centre, quantise, quantised, write_tokenizer
from tests.tiny_shapes import LATENT, is_hybrid, is_linear, tensor_shapes

ITEM = 2  # bytes of a number in the caches: bfloat16
SIZES = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
BLOCK = 128  # rows and columns of FP8 that share a scale
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


# As its publisher has it in FP8.
SHAPES["qwen3-30b-a3b-fp8"] = Shape("qwen3_moe", SHAPES["qwen3-30b-a3b"].config | {"quantization_config": FP8})


class Stored(NamedTuple):
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * SIZES[self.dtype]


Tensors = dict[str, Stored]


def stored_tensors(config: dict[str, Any]) -> Iterator[tuple[str, Stored]]:
    """What a checkpoint holds: of a matrix in FP8 also its scales."""
    for name, shape in tensor_shapes(config):
        if quantised(name, config.get("quantization_config")):
            yield name, Stored("F8_E4M3", shape)
            yield f"{name}_scale_inv", Stored("F32", tuple(-(-size // BLOCK) for size in shape))
        else:
            yield name, Stored("F32" if name.endswith(IN_FLOAT32) else "BF16", shape)


def write(folder: Path, shape: Shape) -> Path:
    """A checkpoint in shards as published ones are, in bfloat16 or as its `quantization_config` says: a second for each
    GB or so."""
    folder.mkdir(parents=True)
    config = shape.full_config
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder, config["vocab_size"])
    shards = list(_shards(stored_tensors(config)))
    pool = _Pool()
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / name, shard, config, pool)
        places |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
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
    for name, tensor in stored_tensors(config):
        if name == "model.embed_tokens.weight" and not config["tie_word_embeddings"]:
            continue  # a row for each token
        weights += tensor.nbytes * (reached if ".experts." in name else 1)
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


def _shards(tensors: Iterator[tuple[str, Stored]]) -> Iterator[Tensors]:
    shard: Tensors = {}
    size = 0
    for name, tensor in tensors:
        if size + tensor.nbytes > SHARD_BYTES and shard:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _write_shard(path: Path, tensors: Tensors, config: dict[str, Any], pool: _Pool) -> None:
    ends = np.cumsum([0, *(tensor.nbytes for tensor in tensors.values())]).tolist()
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, tensor), (begin, end) in zip(tensors.items(), pairwise(ends), strict=True):
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (dtype, shape) in tensors.items():
            if name.endswith("norm.weight"):
                file.write(_bfloat16(np.full(shape, norm_centre(name, config), np.float32)).data)
            elif name.endswith("_scale_inv"):
                file.write(np.full(shape, pool.scale, np.float32).data)
            elif dtype == "F8_E4M3":
                for codes in pool.take_codes(math.prod(shape)):
                    file.write(codes.data)
            else:
                for part in pool.take(math.prod(shape)):
                    file.write((part.astype(np.uint32) << 16 if dtype == "F32" else part).data)


def _bfloat16(values: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


class _Pool:
    """Normal bfloat16 numbers that are given out in turn: drawing billions would take minutes. Those in FP8 are codes
    that all have the one scale `scale`."""

    def __init__(self) -> None:
        self._values = _bfloat16(np.random.default_rng(0).standard_normal(POOL, np.float32) * np.float32(SCALE))
        self._at = 0

    def take(self, count: int) -> Iterator[np.ndarray[Any, np.dtype[np.uint16]]]:
        yield from self._take(self._values, count)

    def take_codes(self, count: int) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
        yield from self._take(self._quantised[0], count)

    @property
    def scale(self) -> float:
        return self._quantised[1]

    @cached_property
    def _quantised(self) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], float]:
        """The same numbers, with one scale for all: a matrix has its blocks anywhere in the pool."""
        codes, scales = quantise((self._values.astype(np.uint32) << 16).view(np.float32).reshape(-1, 4096))
        return codes.reshape(-1), float(scales.mean())

    def _take(self, values: np.ndarray[Any, Any], count: int) -> Iterator[np.ndarray[Any, Any]]:
        while count:
            part = values[self._at : self._at + count]
            yield part
            count -= len(part)
            # One short of the end, so that the next time round every matrix begins elsewhere.
            self._at = (self._at + len(part)) % (POOL - 1)
