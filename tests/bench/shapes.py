"""Models of published shapes with random weights, made on the spot, and what a step must read of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tests.tiny import BASE, FAMILIES, tensor_shapes, write_tokenizer

ITEM = 2  # bytes of a weight, and of an element of the KV cache: bfloat16
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
        _write_shard(folder / name, shard, pool)
        places |= dict.fromkeys(shard, name)
    index = {"metadata": {"total_size": ITEM * sum(map(math.prod, _all(shards)))}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def read_by_step(shape: Shape, streams: int, context: int) -> int:
    """Bytes that a decode step of `streams` tokens, each after `context` others, has to read: the weights, of experts
    the share that uniform routing reaches on average, and the keys and values."""
    config = shape.full_config
    experts = config.get("num_experts", 0)
    reached = 1 - (1 - config["num_experts_per_tok"] / experts) ** streams if experts else 1
    weights = 0.0
    for name, size in tensor_shapes(config):
        if name == "model.embed_tokens.weight" and not config["tie_word_embeddings"]:
            continue  # a row for each token
        weights += math.prod(size) * (reached if ".experts." in name else 1)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    entry = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim
    return round(ITEM * (weights + entry * streams * context))


Tensors = dict[str, tuple[int, ...]]


def _shards(tensors: Iterator[tuple[str, tuple[int, ...]]]) -> Iterator[Tensors]:
    shard: Tensors = {}
    size = 0
    for name, shape in tensors:
        if size + ITEM * math.prod(shape) > SHARD_BYTES and shard:
            yield shard
            shard, size = {}, 0
        shard[name] = shape
        size += ITEM * math.prod(shape)
    yield shard


def _all(shards: list[Tensors]) -> list[tuple[int, ...]]:
    return [shape for shard in shards for shape in shard.values()]


def _write_shard(path: Path, tensors: Tensors, pool: _Pool) -> None:
    ends = np.cumsum([0, *(ITEM * math.prod(shape) for shape in tensors.values())]).tolist()
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, shape), (begin, end) in zip(tensors.items(), pairwise(ends), strict=True):
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors.items():
            if name.endswith("norm.weight"):
                file.write(np.full(shape, 0x3F80, np.uint16).data)  # 1.0
            else:
                pool.write(file, math.prod(shape))


class _Pool:
    """Normal bfloat16 numbers that are given out in turn: drawing billions would take minutes."""

    def __init__(self) -> None:
        drawn = np.random.default_rng(0).standard_normal(POOL, np.float32) * np.float32(SCALE)
        self._values = (drawn.view(np.uint32) >> 16).astype(np.uint16)
        self._at = 0

    def write(self, file: BinaryIO, count: int) -> None:
        while count:
            part = self._values[self._at : self._at + count]
            file.write(part.data)
            count -= len(part)
            # One short of the end, so that the next time round every matrix begins elsewhere.
            self._at = (self._at + len(part)) % (POOL - 1)
