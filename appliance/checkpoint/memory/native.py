"""What the native engine takes for a model: weights as they are kept, a cache of keys and values, and its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from appliance.checkpoint.cache_specs import bytes_per_sequence, bytes_per_token, of_pool, pool_windows
from appliance.checkpoint.layout import largest_matrix, loading_bytes, weight_bytes
from appliance.checkpoint.memory.cache_shape import CacheShape, Windowed
from appliance.checkpoint.memory.formats import ITEM_BYTES, MIB
from appliance.checkpoint.memory.graph_shapes import graph_shapes
from appliance.checkpoint.memory.plan import MemoryLimits, Workspace
from appliance.checkpoint.memory.step import SAMPLING, Moment, StepShape, moments
from appliance.checkpoint.model_config import CompressedAttention, ModelConfig
from appliance.checkpoint.selection import keeps_fp8
from kernels import mla_attention
from kernels.all_reduce import shared_bytes
from kernels.catalogue import graphs_hold_prefills
from kernels.indexer import score_bytes
from kernels.paged_attention import scratch_bytes

# The core's process on a CPU, all else aside, as VmHWM counts it: Python with torch's libraries once a model has run
# (240 to 245 MiB), and the products that oneDNN compiled for a few dozen shapes (a third of a MiB each).
HOST_RUNTIME_BYTES: Final = 260 * MIB
# A CUDA context with the modules of torch and cuBLAS and Triton's kernels: 160 to 188 MiB on an H200 under driver 580,
# as `tests/gpu/test_memory_plan.py` prints it; cuBLAS's workspace, 32 MiB; and the last piece of a segment.
CUDA_RUNTIME_BYTES: Final = 220 * MIB
# What NCCL keeps on each GPU of several, its channels' buffers mostly: as its documentation lets expect, not measured.
NCCL_BYTES: Final = 512 * MIB
# The C library keeps what the core frees, in one heap, but for results of this size: they are outside of it, and given
# back at once (`appliance/engine/__main__.py`). The heap and the rest are fullest at different moments of a step.
HEAP_BELOW: Final = 32 * MIB
# Holes that some hundred steps of different sizes leave in the heap, between what stays there and what comes and goes.
# The plan is the middle of what several runs of one model left (docs/memory.md).
HEAP_HOLES_BYTES: Final = 32 * MIB
# Experts in 16 bits leave more of them (docs/memory.md).
EXPERTS_HOLES_BYTES: Final = 51 * MIB
# What torch's allocator for GPUs holds beside what a step needs at its fullest, in a segment that grows: 21 to 96 MiB
# for steps of 180 to 350 MiB.
CUDA_SLACK_SHARE: Final = 0.2
# What it holds besides on each GPU of several, where segments do not grow (`appliance/engine/allocator.py`): as much as
# one GPU's segments of set sizes left in holes; with several ranks not measured.
SET_SEGMENTS_BYTES: Final = 500 * MIB

# What the driver keeps of a graph: 0.9 MiB with 12 and with 22 layers, 1.2 with two, on an H200 under driver 580.
GRAPH_BYTES: Final = 1200 << 10

# Of each token in the table of histories (`appliance/engine/histories.py`): its id and its count.
HISTORY_BYTES: Final = 8


@dataclass(frozen=True)
class NativeFootprint:
    """`attention` gives what the chosen backend of attention works in where contexts have up to so many tokens, as
    `StepShape` has it; it never falls as they grow. `backends` names the chosen one of each op."""

    config: ModelConfig
    limits: MemoryLimits
    device: Literal["cpu", "cuda"]
    attention: Callable[[int], tuple[tuple[int, ...], ...]]
    backends: Mapping[str, str]
    unified: bool = False
    graphs: bool = False

    reserves_states = True
    has_pools = True
    spare_blocks = 1
    takes_all = False

    @property
    def context_length(self) -> int:
        return self.config.context_length

    @cached_property
    def weight_bytes(self) -> int:
        return weight_bytes(self.config, self._item, keep_fp8=self._fp8)

    def graph_bytes(self, max_model_len: int) -> int:
        """Their launches, the logits that they share, and what the largest of them works in: torch keeps that apart
        from the memory of other steps."""
        if not self.graphs:
            return 0
        shapes = graph_shapes(
            max_num_seqs=self.limits.most_rows,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            max_model_len=max_model_len,
            window=self._window(max_model_len),
            prefills=graphs_hold_prefills(self.backends),
        )
        rows = max(shape.num_rows for shape in shapes)
        tokens = max(shape.num_tokens for shape in shapes)
        sequences = max(shape.sequences for shape in shapes)
        shape = StepShape(
            tokens=tokens, sequences=rows, item=self._item, fp8=self._fp8, backends=self.backends,
            attention=self._decoding(sequences, max_model_len),
        )  # fmt: skip
        pool = max(moment.total for moment in moments(self.config, shape) if moment.name != SAMPLING)
        logits = rows * self.config.vocab_size
        copies = 0 if self.config.ranks == 1 else 3  # this rank's, all ranks', and these in order
        pool = max(pool, copies * logits * self._item)
        pool = int(pool * (1 + CUDA_SLACK_SHARE))
        if self.config.drafts:  # the head has graphs of its own, and is given hidden states, and tokens
            streams = 1 if self.config.connections is None else self.config.connections.streams
            pool += len(shapes) * GRAPH_BYTES + tokens * (streams * self.config.hidden_size * self._item + 8)
        return len(shapes) * GRAPH_BYTES + logits * self._item + pool

    def _decoding(self, sequences: int, max_model_len: int) -> tuple[tuple[int, ...], ...]:
        """What Triton's attention works in while so many sequences decode, at each moment that may be its fullest: of
        a window they see it, and what lies before it in its first block."""
        heads, latent = self.config.num_attention_heads, self.config.latent_attention
        if latent is None:
            window = self._window(max_model_len)
            seen = max_model_len if window is None else min(max_model_len, window + self.limits.block_size - 1)
            return ((scratch_bytes(heads, self.config.head_dim, seen),),)
        indexing = latent.indexing
        absorbed = sequences * heads * latent.kv_rank * self._item
        seen = max_model_len if indexing is None else indexing.top_k
        attending = absorbed, absorbed, mla_attention.scratch_bytes(heads, latent.kv_rank, seen)
        return (attending,) if indexing is None else (attending, (score_bytes(max_model_len * 4, sequences),))

    def _window(self, max_model_len: int) -> int | None:
        """The longest one, where all layers have one."""
        return pool_windows(self.config.cache_specs, max_model_len)[0]

    @cached_property
    def cache(self) -> CacheShape:
        specs, item = self.config.cache_specs, ITEM_BYTES[self.limits.kv_cache_dtype]
        sizes = {
            window: bytes_per_token(of_pool(specs, window), item, self.limits.block_size)
            for window in pool_windows(specs)
        }
        return CacheShape(
            bytes_per_token=sizes.pop(None, 0),
            windows=tuple(Windowed(window, size) for window, size in sizes.items() if window is not None),
            per_sequence=bytes_per_sequence(specs, self._item),
        )

    def workspace(self, max_model_len: int) -> Workspace:
        attention = self.attention(max_model_len)
        history = min(max_model_len, self.config.vocab_size)  # each token once
        step, slack = self._step(attention, history)
        return Workspace(
            runtime=self._runtime,
            step=step,
            attention=max((sum(tensors) for tensors in attention), default=0),
            slack=slack,
            tables=self._tables(max_model_len),
            histories=self.limits.max_num_seqs * history * HISTORY_BYTES,
            packed=self._second_head,
            loading=self._loading,
        )

    def _tables(self, max_model_len: int) -> int:
        """Of DeepSeek V4 two, in float32: of layers with compressed entries, and of others."""
        compressed = [layer.mixer for layer in self.config.layers if isinstance(layer.mixer, CompressedAttention)]
        kinds = {mixer.ratio > 0 for mixer in compressed}
        item = 4 * len(kinds) if compressed else self._item
        return max_model_len * self.config.rotary_dim * item

    def _step(self, attention: tuple[tuple[int, ...], ...], history: int) -> tuple[int, int]:
        """What a step needs, and what the allocator holds beside that."""
        limits = self.limits
        shape = StepShape(
            tokens=limits.max_num_batched_tokens,
            sequences=limits.most_rows,
            item=self._item,
            fp8=self._fp8,
            backends=self.backends,
            history=history,
            attention=attention,
        )
        found = moments(self.config, shape)
        step = max(moment.total for moment in found)
        if self.device == "cuda":
            holes = SET_SEGMENTS_BYTES if self.config.ranks > 1 else 0
            return step, int(step * CUDA_SLACK_SHARE) + holes
        heap = max(_heap(moment) for moment in found)
        outside = max(sum(size for size in moment.tensors if size >= HEAP_BELOW) for moment in found)
        experts = EXPERTS_HOLES_BYTES if self.config.experts is not None and self._item == 2 else 0
        return step, heap + outside - step + HEAP_HOLES_BYTES + experts

    @property
    def _item(self) -> int:
        return ITEM_BYTES[self.limits.dtype]

    @property
    def _fp8(self) -> bool:
        return keeps_fp8(self.config, self.device, self.limits.dtype)

    @property
    def _runtime(self) -> int:
        """The core of a GPU that shares the host's memory takes what its process does as well."""
        if self.device == "cpu":
            return HOST_RUNTIME_BYTES
        ranks = self.config.ranks
        collectives = NCCL_BYTES + shared_bytes(ranks) if ranks > 1 else 0
        return CUDA_RUNTIME_BYTES + collectives + (HOST_RUNTIME_BYTES if self.unified else 0)

    @property
    def _repacks(self) -> bool:
        """Whether weights take a layout of their kernel's own, each a new copy, when they are loaded."""
        return self.backends.get("linear") in ("onednn", "cpp")

    @property
    def _second_head(self) -> int:
        """An embedding that is also the head cannot be looked up in the layout that the head is multiplied in."""
        head = self.config.vocab_rows * self.config.hidden_size * self._item
        return head if self._repacks and self.config.tie_word_embeddings else 0

    @property
    def _loading(self) -> int:
        """A second head is counted by itself."""
        repacked = largest_matrix(self.config) * self._item if self._repacks and not self._second_head else 0
        return max(repacked, 0 if self._fp8 else loading_bytes(self.config))


def _heap(moment: Moment) -> int:
    """What the heap holds of it. Rows of logits are as many as sequences sample: fewer of them are in the heap."""
    if moment.name == SAMPLING:
        return sum(min(size, HEAP_BELOW) for size in moment.tensors)
    return sum(size for size in moment.tensors if size < HEAP_BELOW)
