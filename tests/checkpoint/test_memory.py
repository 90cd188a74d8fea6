"""The memory plan: what fits is planned within its bounds, what does not is refused with the longest that does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.checkpoint.cache_specs import SlidingWindow, State, StatePart, pool_windows
from appliance.checkpoint.config import ModelConfig, read_config
from appliance.checkpoint.memory import (
    COPIES_PER_SEQUENCE,
    DEFAULT_HOST_CACHE,
    HOST_CACHE_SHARE,
    SHORTEST_USEFUL_CONTEXT,
    DeviceMemory,
    MemoryLimits,
    MemoryPlan,
    NativeFootprint,
    plan_memory,
)
from appliance.checkpoint.memory.cache_shape import CacheShape, Windowed
from appliance.checkpoint.memory.native import NCCL_BYTES, SET_SEGMENTS_BYTES
from appliance.checkpoint.memory.pools import divided, held_blocks, most_sequences, needs
from appliance.checkpoint.safetensors import read_index
from appliance.checkpoint.sharding import sharded
from appliance.engine.block_pool import BlockPool
from appliance.engine.cache_manager import CacheManager
from kernels.all_reduce import shared_bytes
from tests.tiny import ALIGNED, BASE, FAMILIES, FP8, write_checkpoint

GIB = 1 << 30
TRITON_OPS = ("rms_norm", "rotary_cache", "paged_attention", "fp8_linear", "moe_routing", "fused_moe", "sampling")


@pytest.fixture(scope="module")
def hybrid(llama_8b: ModelConfig) -> ModelConfig:
    """The same with recurrent layers in three of four: 2 MiB each, and 48 KiB for their convolution."""
    state = State(parts=(StatePart((32, 128, 128), "float32"), StatePart((8192, 3))))
    layers = [
        layer if number % 4 == 3 else msgspec.structs.replace(layer, cache=state)
        for number, layer in enumerate(llama_8b.layers)
    ]
    return msgspec.structs.replace(llama_8b, layers=tuple(layers))


@pytest.fixture(scope="module")
def llama_8b(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """The shape of Llama 3.1 8B."""
    folder = tmp_path_factory.mktemp("m")
    shape = {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(BASE | FAMILIES["llama"] | shape))
    return read_config(folder)


def plan(config: ModelConfig, device: Any, available: int, **changes: Any) -> MemoryPlan:
    limits: dict[str, Any] = {
        "dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "max_model_len": None, "max_num_seqs": 256,
        "max_num_batched_tokens": 2048, "block_size": 16, "kv_cache_memory_bytes": None,
    }  # fmt: skip
    given = MemoryLimits(**limits | changes)
    backends = {} if device == "cpu" else dict.fromkeys(TRITON_OPS, "triton")
    footprint = NativeFootprint(config, given, device, attention=lambda length: ((4096 * length,),), backends=backends)
    memory = DeviceMemory(kind="host" if device == "cpu" else "dedicated", total=available, free=available)
    return plan_memory(footprint, given, memory)


def test_the_arithmetic_of_a_known_model(llama_8b: ModelConfig) -> None:
    """8.03 billion parameters in two bytes; 128 KiB of cache a token, as published for Llama 3 8B."""
    result = plan(llama_8b, "cuda", 72 * GIB)
    assert result.weight_bytes == 2 * 8_030_261_248
    assert result.bytes_per_token == 128 * 1024
    assert result.fits
    assert result.max_model_len == 131072
    assert result.needed_bytes <= 72 * GIB
    assert result.num_blocks * 16 * 128 * 1024 == result.cache_bytes


def test_ranks_on_gpus_count_what_they_share_and_what_nccl_and_segments_hold(
    llama_8b: ModelConfig,
) -> None:
    """All else of a rank that differs is by its config."""
    local = sharded(llama_8b, 2)
    as_one = msgspec.structs.replace(local, ranks=1)
    rank, alone = (plan(config, "cuda", 64 << 30, max_model_len=4096) for config in (local, as_one))
    assert rank.workspace.slack - alone.workspace.slack >= SET_SEGMENTS_BYTES
    assert rank.workspace.runtime - alone.workspace.runtime == NCCL_BYTES + shared_bytes(2)


def test_a_cache_in_8_bits_takes_half(llama_8b: ModelConfig) -> None:
    """And so twice the tokens fit beside the same weights; the pages are still gathered in the model's own dtype."""
    full, small = plan(llama_8b, "cuda", 72 * GIB), plan(llama_8b, "cuda", 72 * GIB, kv_cache_dtype="fp8")
    assert small.bytes_per_token * 2 == full.bytes_per_token
    assert small.workspace_bytes >= full.workspace_bytes
    assert small.num_blocks > 1.8 * full.num_blocks


def test_states_are_there_for_all_sequences_and_some_copies(hybrid: ModelConfig) -> None:
    result = plan(hybrid, "cuda", 72 * GIB, max_num_seqs=64)
    each = 24 * ((2 << 20) + (48 << 10))
    assert result.fits
    assert result.bytes_per_token == 8 * 4096
    assert result.state_bytes == 65 * each
    assert result.num_snapshots == COPIES_PER_SEQUENCE * 64
    assert result.cache_bytes == result.num_blocks * 16 * 8 * 4096 + result.num_snapshots * each
    assert result.needed_bytes <= 72 * GIB
    assert plan(hybrid, "cuda", 72 * GIB, max_num_seqs=64, prefix_caching=False).num_snapshots == 0


def test_copies_of_states_leave_room_for_one_sequence(hybrid: ModelConfig) -> None:
    """As memory shrinks, copies go first, then the context; what is planned always fits."""
    copies = []
    for mib in range(19_000, 16_000, -20):
        result = plan(hybrid, "cuda", mib << 20, max_num_seqs=4, max_model_len=16384)
        if not result.fits:
            break
        assert result.needed_bytes <= mib << 20
        assert result.num_blocks > 16384 // 16
        copies.append(result.num_snapshots)
    assert copies[0] > 0
    assert copies[-1] == 0
    assert copies == sorted(copies, reverse=True)


def test_weights_in_fp8_are_counted_as_they_are_kept(tmp_path: Path) -> None:
    """On a GPU in half precision as in the checkpoint; elsewhere multiplied out."""
    folder = write_checkpoint(tmp_path / "m", "mixtral", **ALIGNED, quantization_config=FP8)
    config, stored = read_config(folder), read_index(folder)
    plain = read_config(write_checkpoint(tmp_path / "plain", "mixtral", **ALIGNED))
    scales = sum(e.end - e.begin for name, e in stored.tensors.items() if name.endswith("_scale_inv"))
    fp8 = sum(e.end - e.begin for e in stored.tensors.values() if e.dtype == "F8_E4M3")
    rest = stored.total_bytes - fp8 - scales
    kept = plan(config, "cuda", 72 * GIB, max_num_seqs=4)
    assert kept.weight_bytes == fp8 + scales + rest // 2
    for device, dtype in (("cpu", "float32"), ("cuda", "float32"), ("cpu", "bfloat16")):
        asked = {"dtype": dtype, "kv_cache_dtype": dtype, "max_num_seqs": 4}
        assert (
            plan(config, device, 72 * GIB, **asked).weight_bytes == plan(plain, device, 72 * GIB, **asked).weight_bytes
        )


def test_a_sparse_model_counts_all_experts_and_computes_with_a_few(tmp_path: Path) -> None:
    """More experts take more memory as weights; more of them for each token take more of it in a step."""

    def planned(name: str, **changes: Any) -> MemoryPlan:
        config = read_config(write_checkpoint(tmp_path / name, "mixtral", **changes))
        return plan(config, "cuda", 72 * GIB, max_num_seqs=4)

    base, more, deeper = planned("base"), planned("more", num_local_experts=16), planned("deep", num_experts_per_tok=4)
    experts = 8 * 2 * 3 * 64 * 128  # 8 more in each of 2 layers, of 3 matrices
    routers = 8 * 2 * 64
    assert more.weight_bytes - base.weight_bytes == 2 * (experts + routers)
    assert deeper.weight_bytes == base.weight_bytes
    assert deeper.workspace_bytes > base.workspace_bytes


def test_an_open_context_is_shortened_to_fit(llama_8b: ModelConfig) -> None:
    """Not refused, as long as it is of use."""
    result = plan(llama_8b, "cuda", 24 * GIB)
    assert result.fits
    assert result.shortened
    assert SHORTEST_USEFUL_CONTEXT <= result.max_model_len < 131072


def test_a_given_context_that_does_not_fit_is_refused_with_the_longest(llama_8b: ModelConfig) -> None:
    """And the longest one suggested fits."""
    result = plan(llama_8b, "cuda", 24 * GIB, max_model_len=131072)
    assert not result.fits
    assert 0 < result.longest_context < 131072
    assert plan(llama_8b, "cuda", 24 * GIB, max_model_len=result.longest_context).fits
    assert not plan(llama_8b, "cuda", 24 * GIB, max_model_len=result.longest_context + 16).fits


def test_weights_that_do_not_fit_leave_no_context(llama_8b: ModelConfig) -> None:
    """No context length can fix that."""
    result = plan(llama_8b, "cuda", 8 * GIB)
    assert not result.fits
    assert result.longest_context == 0


def test_a_small_model_on_a_cpu_takes_little(tmp_path: Path) -> None:
    """The bundled model must start at once and leave the machine usable."""
    config = read_config(write_checkpoint(tmp_path / "m"))
    result = plan(config, "cpu", 16 * GIB, dtype="float32", kv_cache_dtype="float32")
    assert result.fits
    assert result.max_model_len == config.max_position_embeddings
    assert result.cache_bytes <= DEFAULT_HOST_CACHE


def test_a_given_cache_is_taken_as_given(llama_8b: ModelConfig) -> None:
    """More than the default, less than one sequence, and more than there is."""
    assert plan(llama_8b, "cpu", 64 * GIB, kv_cache_memory_bytes=20 * GIB).cache_bytes == 20 * GIB
    small = plan(llama_8b, "cuda", 72 * GIB, kv_cache_memory_bytes=GIB, max_model_len=131072)
    assert not small.fits
    assert small.longest_context == 8192 - 16
    assert not plan(llama_8b, "cuda", 72 * GIB, kv_cache_memory_bytes=100 * GIB).fits


@settings(max_examples=300, deadline=None)
@given(
    device=st.sampled_from(["cpu", "cuda"]),
    available=st.integers(0, 200 * GIB),
    max_model_len=st.none() | st.integers(1, 1 << 20),
    max_num_seqs=st.integers(1, 4096),
    max_num_batched_tokens=st.integers(1, 1 << 16),
    block_size=st.sampled_from([8, 16, 128]),
    kv_cache_memory_bytes=st.none() | st.integers(1, 100 * GIB),
)
def test_what_is_planned_holds(llama_8b: ModelConfig, device: str, available: int, **limits: Any) -> None:
    """A plan that fits: one sequence and a block to spare, within what is available and its caps. One that does not:
    a longest context that does, and one block more that does not."""
    result = plan(llama_8b, device, available, **limits)
    blocks_of_one = -(-result.max_model_len // result.block_size)
    assert result.num_blocks > blocks_of_one
    if result.fits:
        assert result.needed_bytes <= available
        assert result.longest_context >= result.max_model_len
        if limits["kv_cache_memory_bytes"] is None:
            assert result.num_blocks <= blocks_of_one * limits["max_num_seqs"] + 1
            assert device == "cuda" or result.cache_bytes <= available * HOST_CACHE_SHARE
    elif result.longest_context:
        again = limits | {"max_model_len": result.longest_context}
        assert plan(llama_8b, device, available, **again).fits
        longer = limits | {"max_model_len": result.longest_context + result.block_size}
        assert longer["max_model_len"] > result.max_model_len or not plan(llama_8b, device, available, **longer).fits


# ------------------------------------------------------------------------------------------------------------- windows


def windowed(config: ModelConfig, windows: dict[int, int]) -> ModelConfig:
    """With `windows`: of each layer that has one, its length."""
    layers = [
        msgspec.structs.replace(layer, cache=SlidingWindow(num_kv_heads=8, head_dim=128, window=windows[number]))
        if number in windows
        else layer
        for number, layer in enumerate(config.layers)
    ]
    return msgspec.structs.replace(config, layers=tuple(layers))


def test_where_all_layers_have_a_window_a_context_takes_it_and_a_chunk(llama_8b: ModelConfig) -> None:
    mistral = windowed(llama_8b, dict.fromkeys(range(32), 4096))
    full, windows = (plan(config, "cuda", 24 * GIB, max_model_len=32768) for config in (llama_8b, mistral))
    (pool,) = windows.pools
    assert (pool.window, pool.block_bytes) == (4096, 16 * 128 * 1024)
    assert (full.fitting.at_full_length, windows.fitting.at_full_length) == (2, 15)
    assert windows.bytes_per_token == full.bytes_per_token


GEMMA_3 = {number: 1024 for number in range(32) if number % 6 != 5}
GPT_OSS = dict.fromkeys(range(0, 32, 2), 128)


@pytest.mark.parametrize(
    ("windows", "gib", "length", "blocks"),
    [
        (GEMMA_3, 40, 65536, (40434, 6995)),  # 52% of the bytes, 48%
        (GEMMA_3, 40, 8192, (32670, 8786)),  # 41%, 59%: short contexts fill the windows as well
        (GPT_OSS, 64, 65536, (44242, 4773)),  # 90%, 10%: nearly all that 512 windows can fill
        (GPT_OSS, 24, 65536, (5281, 2774)),  # 66%, 34%
    ],
)
def test_a_cache_is_divided_by_what_fills_each_pool_most(
    llama_8b: ModelConfig, windows: dict[int, int], gib: int, length: int, blocks: tuple[int, int]
) -> None:
    found = plan(windowed(llama_8b, windows), "cuda", gib * GIB, max_model_len=length)
    assert tuple(pool.num_blocks for pool in found.pools) == blocks
    assert found.window_blocks == {next(iter(windows.values())): blocks[1]}
    assert found.cache_bytes == sum(pool.num_blocks * pool.block_bytes for pool in found.pools)


def test_where_there_is_room_for_all_no_pool_has_more_than_is_of_use(llama_8b: ModelConfig) -> None:
    found = plan(windowed(llama_8b, GPT_OSS), "cuda", 64 * GIB, max_model_len=8192, max_num_seqs=16)
    assert found.num_blocks == 16 * 8192 // 16 + 1
    assert found.window_blocks == {128: 2 * 16 * 10 + 2 * 2048 // 16 + 1}


@settings(max_examples=200, deadline=None)
@given(
    full=st.integers(1, 64),
    windows=st.dictionaries(st.sampled_from([16, 128, 1000, 4096]), st.integers(1, 64), min_size=1, max_size=2),
    more=st.integers(0, 1 << 26),
    length=st.integers(17, 1 << 17),
    chunk=st.sampled_from([16, 512, 2048, 8192]),
    sequences=st.integers(1, 512),
    remembers=st.booleans(),
    share=st.floats(0, 1),
)
def test_at_every_length_run_at_least_half_of_those_that_a_cache_for_it_would_hold(
    full: int, windows: dict[int, int], more: int, length: int, chunk: int, sequences: int, remembers: bool,
    share: float,
) -> None:  # fmt: skip
    """Or a third, with two windows, in `more` bytes than some whole contexts take: below, there is less to divide. That
    cache, too, has a spare block and room for the chunk that is computed."""
    shape = CacheShape(bytes_per_token=full, windows=tuple(Windowed(*each) for each in windows.items()))
    wanted = needs(shape, length, block_size=16, chunk=chunk, sequences=sequences, spare=1, remembers=remembers)
    room = 4 * len(wanted) * sum(need.least * need.block_bytes for need in wanted) + more
    pools = divided(room, wanted, capped=True)
    assert sum(pool.num_blocks * pool.block_bytes for pool in pools) <= room
    short = max(int(share * length) // 16, 1)
    held = {None: short} | {window: min(short, held_blocks(window, 16)) for window in windows}
    beside = sum((1 + min(short - held[pool.window], chunk // 16)) * pool.block_bytes for pool in pools)
    best = min((room - beside) // sum(held[pool.window] * pool.block_bytes for pool in pools), sequences)
    found = most_sequences(pools, 16 * short, block_size=16, chunk=chunk, spare=1)
    assert found >= best // len(pools)


GEMMA_3_27B = CacheShape(bytes_per_token=10 * 8192, windows=(Windowed(1024, 52 * 8192),))  # in 8 bits
SMALL = CacheShape(bytes_per_token=1, windows=(Windowed(16, 56),))
TINY_WINDOW = CacheShape(bytes_per_token=6, windows=(Windowed(16, 27),))


@pytest.mark.parametrize(
    ("shape", "room", "length", "sequences", "remembers", "fit"),
    [
        (GEMMA_3_27B, 4 * GIB, 4096, 256, True, 3),  # of 5 in a cache for that length
        (GEMMA_3_27B, 8 * GIB, 8192, 256, True, 4),  # of 7
        (GEMMA_3_27B, 12 * GIB, 32768, 256, True, 2),  # of 4
        (SMALL, 82_685, 100, 256, False, 27),  # of 29
        (TINY_WINDOW, 16_847_060, 114_580, 64, False, 24),  # of 24: most of the window's pool is a chunk
    ],
)
def test_a_long_chunk_leaves_a_small_cache_to_sequences(
    shape: CacheShape, room: int, length: int, sequences: int, remembers: bool, fit: int
) -> None:
    wanted = needs(shape, length, block_size=16, chunk=8192, sequences=sequences, spare=1, remembers=remembers)
    pools = divided(room, wanted, capped=True)
    assert most_sequences(pools, length, block_size=16, chunk=8192, spare=1) == fit


def test_graphs_count_no_more_than_windows_where_all_layers_have_one(llama_8b: ModelConfig) -> None:
    """A context beyond them is decoded as one of their length, in parts of 256 tokens, and needs no further graphs."""

    def graphs(config: ModelConfig, length: int) -> int:
        given = MemoryLimits(
            dtype="bfloat16", kv_cache_dtype="bfloat16", max_model_len=length, max_num_seqs=8,
            max_num_batched_tokens=2048, block_size=16, kv_cache_memory_bytes=None,
        )  # fmt: skip
        backends = dict.fromkeys(TRITON_OPS, "triton")
        return NativeFootprint(
            config, given, "cuda", attention=lambda _: (), backends=backends, graphs=True
        ).graph_bytes(length)  # fmt: skip

    mistral = windowed(llama_8b, dict.fromkeys(range(32), 4096))
    mixed = windowed(llama_8b, dict.fromkeys(range(31), 4096))
    assert graphs(mistral, 4096) == graphs(llama_8b, 4096)
    assert graphs(mistral, 8192) == graphs(mistral, 131072)
    assert graphs(mixed, 131072) == graphs(llama_8b, 131072) > graphs(mistral, 131072)


def test_a_window_as_long_as_the_context_keeps_every_token(llama_8b: ModelConfig) -> None:
    config = windowed(llama_8b, dict.fromkeys(range(16), 4096))
    assert plan(config, "cuda", 40 * GIB, max_model_len=4096) == plan(llama_8b, "cuda", 40 * GIB, max_model_len=4096)
    assert plan(config, "cuda", 40 * GIB, max_model_len=4097).pools[1].window == 4096


@settings(max_examples=200, deadline=None)
@given(
    windows=st.dictionaries(st.integers(0, 31), st.sampled_from([1, 128, 1000, 4096]), min_size=1),
    available=st.integers(16 * GIB, 100 * GIB),
    max_model_len=st.none() | st.integers(1, 1 << 18),
    max_num_seqs=st.integers(1, 1024),
    max_num_batched_tokens=st.integers(1, 1 << 14),
    block_size=st.sampled_from([8, 16, 128]),
    kv_cache_memory_bytes=st.none() | st.integers(1, 60 * GIB),
)
def test_what_is_planned_for_windows_is_what_the_engine_asks_for(
    llama_8b: ModelConfig, windows: dict[int, int], available: int, **limits: Any
) -> None:
    config = windowed(llama_8b, windows)
    found = plan(config, "cuda", available, **limits)
    assert tuple(pool.window for pool in found.pools) == pool_windows(config.cache_specs, found.max_model_len)
    cache = CacheManager(*(BlockPool(pool.num_blocks, found.block_size, pool.window) for pool in found.pools))
    assert cache.holds(found.max_model_len)
    if found.fits:
        assert found.needed_bytes <= available
        assert found.fitting.at_full_length >= 1
