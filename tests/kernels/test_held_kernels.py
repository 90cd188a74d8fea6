"""Which arguments a held kernel serves. That it computes what Triton's own launch does is tested on a GPU."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch

from kernels import launch
from kernels.rotary_cache import triton, variants

# What Triton knows of a kernel's parameters; its interpreter does not say.
PARAMETERS = [
    SimpleNamespace(name=name, do_not_specialize_on_alignment=name in ("positions_ptr", "slot_mapping_ptr"))
    for name in inspect.signature(triton.rotary_cache_kernel.fn).parameters
]


@pytest.fixture
def held(monkeypatch):
    driver = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 70 + device)
    monkeypatch.setattr(launch, "driver", SimpleNamespace(active=driver))
    compiled = SimpleNamespace(
        metadata=SimpleNamespace(global_scratch_size=0), function="function", packed_metadata="packed", calls=[]
    )
    compiled.run = lambda *arguments: compiled.calls.append(arguments)
    variant = variants.of(90, "bfloat16", "bfloat16", 128, norm=False, interleaved=False)
    return launch._Held(SimpleNamespace(params=PARAMETERS), variant, compiled), variant, compiled


def arguments(**other):
    x = torch.zeros(64, 128, dtype=torch.bfloat16)
    positions = torch.zeros(8, dtype=torch.int64)
    given: dict[str, object] = dict.fromkeys(("query", "key", "value", "query_weight", "key_weight"), x)
    given |= {"positions": positions, "table": x, "key_cache": x, "value_cache": x, "slots": positions}
    given |= dict.fromkeys(("tokens", "heads", "kv_heads", "size", "half", "query_stride", "key_stride"), 8)
    given |= {"value_stride": 8, "eps": 0.0, "key_scale": 1.0, "value_scale": 1.0, "offset": 0.0}
    return tuple((given | other).values())


def test_whatever_triton_would_choose_it_for(held):
    kernel, _, _ = held
    assert kernel.fits(arguments())
    assert kernel.fits(arguments(positions=torch.zeros(9, dtype=torch.int64)[1:])), "positions begin anywhere"


@pytest.mark.parametrize(
    "other",
    [
        {"query": torch.zeros(64, 128, dtype=torch.float16)},
        {"query": torch.zeros(129, dtype=torch.bfloat16)[1:]},
        {"positions": torch.zeros(8, dtype=torch.int32)},
        {"tokens": 1 << 31},
        {"key_stride": -(1 << 31) - 1},
    ],
    ids=["another dtype", "an odd address", "narrower positions", "too many tokens", "a stride too far back"],
)
def test_nothing_else(held, other):
    kernel, _, _ = held
    assert not kernel.fits(arguments(**other))


def test_it_is_launched_on_the_current_stream_with_the_variants_constants(held):
    kernel, variant, compiled = held
    given = arguments()
    kernel.launch((5,), given)
    (call,) = compiled.calls
    assert call[:6] == (5, 1, 1, 70, "function", "packed")
    behind = 9 + len(given)
    assert call[9:behind] == given
    assert call[behind:] == tuple(value for name, value in variant.constants)
    assert [name for name, _ in variant.constants] == [parameter.name for parameter in PARAMETERS[len(given) :]]


def test_what_the_interpreter_runs_is_not_held(monkeypatch):
    monkeypatch.setattr(launch, "_held", {})
    query, key, value = torch.randn(4, 4, 64, dtype=torch.bfloat16).split((2, 1, 1), dim=1)
    cache, indices = torch.zeros(1, 16, 1, 64, dtype=torch.bfloat16), torch.arange(4)
    table = torch.randn(16, 64, dtype=torch.bfloat16)
    triton.rotary_cache(query, key, value, indices, table, cache, cache.clone(), indices)
    assert launch._held == {}
