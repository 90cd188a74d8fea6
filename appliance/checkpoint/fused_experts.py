"""Checkpoints that hold the experts of a layer in two tensors, as transformers does in memory.

`gate_up_proj` is [experts, rows of gate and then of up, columns], `down_proj` [experts, rows, columns]. The bytes of
each expert's parts lie together, so that they are tensors too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from appliance.checkpoint.families.decoder import layer_prefix
from appliance.checkpoint.layout import SCALE
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.safetensors import DTYPE_BITS, TensorEntry, TensorIndex

GATE_UP: Final = "gate_up_proj"
DOWN: Final = "down_proj"


def one_by_one(index: TensorIndex, config: ModelConfig) -> TensorIndex:
    """`index` with the tensors of every expert by themselves. A fused tensor that cannot be divided so, or any of whose
    parts is there by itself, stays whole, and is then one that no model reads."""
    if config.experts is None:
        return index
    tensors = dict(index.tensors)
    gate, up, down = config.experts.parts
    for layer in config.experts.layers:
        at = f"{layer_prefix(config, layer)}{config.experts.block}.experts."
        for fused, parts in ((GATE_UP, (gate, up)), (DOWN, (down,))):
            for suffix in ("", SCALE):
                entry = tensors.get(f"{at}{fused}{suffix}")
                if entry is None or not _divides(entry, config.experts.num_experts, len(parts)):
                    continue
                divided = dict(_divided(entry, at, parts, suffix))
                if divided.keys().isdisjoint(tensors):
                    del tensors[f"{at}{fused}{suffix}"]
                    tensors |= divided
    return TensorIndex(tensors, index.files, index.total_bytes)


def _divides(entry: TensorEntry, num_experts: int, num_parts: int) -> bool:
    return len(entry.shape) == 3 and entry.shape[0] == num_experts and entry.shape[1] % num_parts == 0


def _divided(entry: TensorEntry, at: str, parts: tuple[str, ...], suffix: str) -> Iterator[tuple[str, TensorEntry]]:
    count, rows, columns = entry.shape[0], entry.shape[1] // len(parts), entry.shape[2]
    size = rows * columns * DTYPE_BITS[entry.dtype] // 8
    begin = entry.begin
    for expert in range(count):
        for part in parts:
            name = f"{at}{expert}.{part}.weight{suffix}"
            yield name, TensorEntry(entry.file, entry.dtype, (rows, columns), begin, begin + size)
            begin += size
