"""The memory of the paged cache."""

from __future__ import annotations

import pytest
import torch

from appliance.checkpoint.cache_specs import FullAttention
from appliance.engine.cache import allocate_cache, cache_bytes, scrub

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_cache_is_finite_and_of_the_size_that_was_planned(dtype):
    caches = allocate_cache([FullAttention(num_kv_heads=2, head_dim=32)] * 3, 4, 16, dtype, CPU)
    assert cache_bytes(caches) == 3 * 2 * 4 * 16 * 2 * 32 * dtype.itemsize
    assert all(not tensor.float().any() for cache in caches for tensor in (cache.key, cache.value))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_a_broken_request_left_is_scrubbed_and_nothing_else(dtype):
    (cache,) = caches = allocate_cache([FullAttention(num_kv_heads=1, head_dim=16)], 4, 16, dtype, CPU)
    for tensor in (cache.key, cache.value):
        tensor.copy_(torch.full(tensor.shape, torch.nan))
    scrub(caches, [1, 3])
    for tensor in (cache.key, cache.value):
        assert not tensor[[1, 3]].float().any()
        assert tensor[[0, 2]].float().isnan().all()
