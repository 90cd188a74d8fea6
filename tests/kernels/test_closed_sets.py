"""What the ops that only move bytes may launch is declared: by architecture, and by model."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

import pytest
import torch

from kernels.context import Context
from kernels.launch import launching_for
from kernels.variants import Variant
from tests.kernels.flags import every_form
from tests.kernels.recorded import launched_by_cases

OPS = ("embedding", "rms_norm", "rotary_cache", "gated_activation")
GATED_DELTA_OPS = ("causal_conv", "delta_rule", "gated_norm")
QWEN3_NEXT = Context(
    "cuda", (9, 0), "bfloat16", head_dim=256, num_heads=16, num_kv_heads=2, hidden_size=2048, gated_delta_head_dim=128,
    gated_delta_value_dim=128, gated_delta_key_heads=16, gated_delta_value_heads=32, conv_width=4,
)  # fmt: skip
MODELS = {
    "Llama 3 8B": Context(
        "cuda", (9, 0), "bfloat16", head_dim=128, num_heads=32, num_kv_heads=8, hidden_size=4096,
        intermediate_size=14336, rotary_dim=128,
    ),
    "Qwen3 4B, FP8 cache": Context(
        "cuda", (8, 0), "float16", head_dim=128, num_heads=32, num_kv_heads=8, hidden_size=2560,
        intermediate_size=9728, rotary_dim=128, qk_norm="head", kv_cache_dtype="float8_e4m3fn",
    ),
    "MiniMax M2": Context(
        "cuda", (12, 0), "bfloat16", head_dim=128, num_heads=48, num_kv_heads=8, hidden_size=3072,
        intermediate_size=1536, rotary_dim=64, qk_norm="all",
    ),
    "a head that turns in 32 of its dimensions": Context(
        "cuda", (8, 9), "float16", head_dim=96, num_heads=4, num_kv_heads=4, hidden_size=384,
        intermediate_size=1024, rotary_dim=32, rotary_interleaved=True, activation="gelu",
    ),
}  # fmt: skip


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Variant]]:
    """Let an op write down what it would launch; the list is filled as the op is called."""

    def listen(op: str) -> list[Variant]:
        found: list[Variant] = []
        module = importlib.import_module(f"kernels.{op}.triton")
        monkeypatch.setattr(module, "launch", lambda kernel, variant, *_: found.append(variant))
        return found

    return listen


@pytest.mark.parametrize("model", [None, *MODELS.values()], ids=["any model", *MODELS])
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("op", OPS)
def test_the_cases_launch_all_that_is_declared_and_nothing_else(op, arch, model):
    declared = importlib.import_module(f"kernels.{op}.variants").variants
    with every_form():
        assert launched_by_cases(op, arch, model) == set(declared(arch, model))


@pytest.mark.parametrize("model", [None, QWEN3_NEXT], ids=["any model", "Qwen3-Next"])
@pytest.mark.parametrize("arch", [80, 86, 90])
@pytest.mark.parametrize("op", GATED_DELTA_OPS)
def test_the_same_of_gated_delta_layers(op, arch, model):
    declared = importlib.import_module(f"kernels.{op}.variants").variants
    assert launched_by_cases(op, arch, model) == set(declared(arch, model)) <= set(declared(arch))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("op", OPS)
def test_a_model_launches_what_was_declared_for_it(op, model, launched):
    """At one token as at many; and all of it is in the set of its architecture."""
    function = getattr(importlib.import_module(f"kernels.{op}.triton"), op)
    declared = importlib.import_module(f"kernels.{op}.variants").variants
    found = launched(op)
    with launching_for(model.arch):
        for tokens in (1, 300):
            for arguments in CALLS[op](model, tokens):
                function(*arguments)
    assert found
    with every_form():
        assert set(found) <= set(declared(model.arch, model)) <= set(declared(model.arch))


def _embedding(model: Context, tokens: int) -> Iterator[tuple]:
    yield torch.zeros(tokens, dtype=torch.int64), _empty(model, 10, model.hidden_size)


def _rms_norm(model: Context, tokens: int) -> Iterator[tuple]:
    x = _empty(model, tokens, model.hidden_size)
    yield x, _empty(model, model.hidden_size), 1e-6, x
    for part in _qkv(model, tokens)[:2] if model.qk_norm == "all" else ():
        yield part.flatten(1), _empty(model, part[0].numel()), 1e-6


def _rotary_cache(model: Context, tokens: int) -> Iterator[tuple]:
    query, key, value = _qkv(model, tokens)
    indices = torch.zeros(tokens, dtype=torch.int64)
    cache = torch.empty((20, 16, *key.shape[1:]), dtype=getattr(torch, model.cache_dtype))
    weights = (_empty(model, model.head_dim),) * 2 if model.qk_norm == "head" else None
    table = _empty(model, 100, model.rotary_dim)
    yield query, key, value, indices, table, cache, cache, indices, weights, 1e-6, model.rotary_interleaved


def _gated_activation(model: Context, tokens: int) -> Iterator[tuple]:
    gate_up = _empty(model, tokens, 2 * model.intermediate_size)
    yield gate_up, model.activation
    yield gate_up, model.activation, 7.0


CALLS = {
    "embedding": _embedding,
    "rms_norm": _rms_norm,
    "rotary_cache": _rotary_cache,
    "gated_activation": _gated_activation,
}


def _qkv(model: Context, tokens: int) -> tuple[torch.Tensor, ...]:
    parts = (model.num_heads, model.num_kv_heads, model.num_kv_heads)
    return _empty(model, tokens, sum(parts), model.head_dim).split(parts, dim=1)


def _empty(model: Context, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, model.dtype))
