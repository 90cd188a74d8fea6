"""The memory of the caches."""

from __future__ import annotations

import pytest
import torch

from appliance.checkpoint.cache_specs import MLA, FullAttention, Indexer, State, StatePart
from appliance.engine.cache import Caches
from appliance.engine.snapshots import FRESH

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_cache_is_finite_and_of_the_size_that_was_planned(dtype):
    caches = make([FullAttention(num_kv_heads=2, head_dim=32)] * 3, dtype)
    assert caches.nbytes == 3 * 2 * 4 * 16 * 2 * 32 * dtype.itemsize
    assert all(not tensor.float().any() for cache in caches.layers for tensor in cache.tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_a_broken_request_left_is_scrubbed_and_nothing_else(dtype):
    caches = make([FullAttention(num_kv_heads=1, head_dim=16)], dtype)
    for tensor in caches.layers[0].tensors:
        tensor.copy_(torch.full(tensor.shape, torch.nan))
    caches.scrub([1, 3])
    for tensor in caches.layers[0].tensors:
        assert not tensor[[1, 3]].float().any()
        assert tensor[[0, 2]].float().isnan().all()


def test_a_state_has_rows_of_its_own_parts():
    spec = State(parts=(StatePart((2, 8, 4), "float32"), StatePart((8, 16))))
    caches = make([spec] * 2, torch.float16, state_rows=5, state_dtype=torch.bfloat16)
    for cache in caches.layers:
        assert [(part.shape, part.dtype) for part in cache.tensors] == [
            ((5, 2, 8, 4), torch.float32), ((5, 8, 16), torch.bfloat16)
        ]  # fmt: skip
        assert all(
            part[0].is_contiguous() and (part[1].data_ptr() - caches.states.data_ptr()) % 256 == 0
            for part in cache.tensors
        )
    assert caches.nbytes == 5 * 2 * spec.bytes_per_sequence(2)


def test_a_row_is_loaded_saved_and_cleared_in_every_layer_and_part():
    caches = make([State(parts=(StatePart((2,)), StatePart((3,))))] * 2, torch.float32, state_rows=5)
    parts = [part for cache in caches.layers for part in cache.tensors]
    for number, part in enumerate(parts):
        part[0] = number + 1
        part[2:] = torch.nan
    caches.save_state(0, 3)
    caches.load_state(3, 1)
    caches.load_state(FRESH, 2)
    for number, part in enumerate(parts):
        assert part[:4].mean(-1).tolist() == [number + 1, number + 1, 0, number + 1]
        assert part[4].isnan().all()


def test_pages_of_latents_are_looked_through_and_states_are_not():
    caches = make([MLA(rank=8, rope_dim=4), State(parts=(StatePart((2,)),))], state_rows=4)
    latent, state = caches.layers
    latent.tensors[0][2, 5, 11] = torch.inf
    state.tensors[0][1] = torch.nan
    assert caches.not_finite([0, 1, 2, 3]) == {2}
    caches.scrub([2])
    assert caches.not_finite([0, 1, 2, 3]) == set()
    assert state.tensors[0][1].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_layer_with_an_indexer_has_pages_of_its_keys_too(dtype):
    """Of the size that was planned; a damaged block is scrubbed in both."""
    specs = (MLA(rank=32, rope_dim=8), Indexer(head_dim=128))
    caches = Caches([specs] * 2, num_blocks=4, block_size=16, dtype=dtype, device=torch.device("cpu"))
    assert caches.nbytes == 2 * 4 * 16 * sum(spec.bytes_per_token(dtype.itemsize) for spec in specs)
    latent, index = caches.layers[1].tensors
    assert index.nbytes == 4 * 16 * (512 if dtype == torch.float32 else 132)
    latent[2, 5, 11] = torch.nan
    index.view(torch.uint8)[1:3] = 0x7F
    assert 2 in caches.not_finite([0, 2])
    caches.scrub([2])
    assert not index.view(torch.uint8)[2].any()
    assert index.view(torch.uint8)[1].all()


def make(specs, dtype=torch.float32, **states):
    return Caches(
        [(spec,) for spec in specs], num_blocks=4, block_size=16, dtype=dtype, device=torch.device("cpu"), **states
    )
