"""What vLLM takes for a model, estimated from config.json and the headers of its weights. On a GPU vLLM itself measures
it by a run with the largest batch when it starts, and gives the rest of its share to the cache; on a CPU the cache is
as large as configured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import structs

from appliance.checkpoint.fields import Fields
from appliance.checkpoint.json_file import read_object
from appliance.checkpoint.memory.cache_shape import CacheShape
from appliance.checkpoint.memory.formats import ITEM_BYTES, MIB
from appliance.checkpoint.memory.plan import MemoryLimits, Workspace
from appliance.checkpoint.safetensors import DTYPE_BITS, TensorIndex
from appliance.vllm.attention_kinds import cache_shape

# Beside weights and cache, before the first batch: on a GPU the context with torch's, cuBLAS' and vLLM's kernels; on a
# CPU all of vLLM's processes, as vLLM 0.32 takes them with what they share counted once: 460 to 510 MiB its server,
# 420 to 440 MiB the engine's core, 540 to 620 MiB the worker once it has compiled.
RUNTIME_BYTES: Final = {"cuda": 1024 * MIB, "cpu": 1536 * MIB}
# vLLM's sampler sorts: a logit in float32, its copy, the sorted ones with their places.
BYTES_PER_LOGIT: Final = 20
# Activations that are alive at once, as a multiple of the hidden size and of the widest feed-forward layer.
_HIDDEN_COPIES, _INNER_COPIES = 6, 3
# vLLM's graphs: those of 67 batch sizes of a 32-layer model take some 0.55 GiB, by its log.
GRAPH_BYTES: Final = MIB // 4  # for each layer and size
_FLOATS: Final = ("F32", "F16", "BF16", "F64")
_MOST: Final = 1 << 24


@dataclass(frozen=True)
class VllmFootprint:
    """Of each of the GPUs that share the model. `takes_all` on a GPU only: a host has other programs."""

    context_length: int
    weight_bytes: int
    all_graphs_bytes: int
    cache: CacheShape
    runtime: int
    step: int
    takes_all: bool

    reserves_states = False  # which are kept in blocks as well
    has_pools = False
    spare_blocks = 1  # the null block

    def graph_bytes(self, _max_model_len: int) -> int:
        return self.all_graphs_bytes

    def workspace(self, _max_model_len: int) -> Workspace:
        return Workspace(runtime=self.runtime, step=self.step)


@dataclass(frozen=True)
class Spread:
    """Of each layer a GPU has one of `shards`, of all layers those of one of `stages`; `offloaded` bytes of its weights
    are in the host's memory."""

    shards: int = 1
    stages: int = 1
    offloaded: int = 0

    def layers(self, count: int) -> int:
        """Of the fullest stage."""
        return -(-count // self.stages)


def vllm_footprint(
    folder: Path, index: TensorIndex, limits: MemoryLimits, *, device: str, spread: Spread, graphs: bool
) -> VllmFootprint | None:
    """None where config.json does not tell.

    Raises CheckpointError where config.json says what cannot be.
    """
    whole = Fields(folder / "config.json", read_object(folder / "config.json", "config"))
    fields = whole.inside("text_config") if whole.mapping("text_config") else whole
    shape = cache_shape(fields, ITEM_BYTES[limits.kv_cache_dtype])
    if shape is None or "max_position_embeddings" not in fields.given:
        return None
    hidden, vocabulary = fields.integer("hidden_size", 1, _MOST), fields.integer("vocab_size", 1, _MOST)
    inner = fields.integer("intermediate_size", 0, _MOST, default=0)
    item, layers = ITEM_BYTES[limits.dtype], fields.integer("num_hidden_layers", 1, _MOST)
    shards = spread.shards
    if not fields.integer("kv_lora_rank", 0, _MOST, default=0):  # a latent is held whole by every GPU
        shape = _part(shape, 1, min(shards, fields.integer("num_key_value_heads", 1, _MOST, default=shards)))
    held = spread.layers(layers)
    shape = _part(shape, held, layers)
    weights = weight_bytes(index, item) * held // (layers * shards)
    activations = limits.max_num_batched_tokens * (_HIDDEN_COPIES * hidden + _INNER_COPIES * inner // shards) * item
    sampling = limits.max_num_seqs * vocabulary * BYTES_PER_LOGIT
    return VllmFootprint(
        context_length=fields.integer("max_position_embeddings", 1, _MOST),
        weight_bytes=max(weights - spread.offloaded, 0),
        all_graphs_bytes=len(graph_sizes(limits.max_num_seqs)) * held * GRAPH_BYTES if graphs else 0,
        cache=shape,
        runtime=RUNTIME_BYTES[device],
        step=max(activations, sampling),
        takes_all=device == "cuda",
    )


def weight_bytes(index: TensorIndex, item: int) -> int:
    """Floats become of the dtype that is computed in; what is quantised stays as it is."""
    return sum(
        (entry.end - entry.begin) * 8 * item // DTYPE_BITS[entry.dtype]
        if entry.dtype in _FLOATS and not name.endswith(("_scale", "_scale_inv", "scales"))
        else entry.end - entry.begin
        for name, entry in index.tensors.items()
    )


def graph_sizes(max_num_seqs: int) -> list[int]:
    """The batch sizes that vLLM captures by default: 1, 2, 4, multiples of 8 up to 256, of 16 up to 512."""
    most = min(2 * max_num_seqs, 512)
    return [size for size in (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)) if size <= most]


def _part(shape: CacheShape, of: int, parts: int) -> CacheShape:
    windows = tuple(structs.replace(each, bytes_per_token=each.bytes_per_token * of // parts) for each in shape.windows)
    return CacheShape(
        bytes_per_token=shape.bytes_per_token * of // parts,
        windows=windows,
        per_sequence=shape.per_sequence * of // parts,
    )
