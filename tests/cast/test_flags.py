"""A cast holds no kernel that nobody can ask for: some model that can be described launches each of its variants."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint import selection
from appliance.checkpoint.config import read_config
from kernels import context
from kernels.cast import plan
from kernels.context import FLAGS_IN_USE, Context
from tests.kernels.flags import FLAGS
from tests.tiny import FAMILIES, aligned, write_checkpoint

# Values that reach every form of a kernel, of each field of a context that has some.
VALUES: dict[str, tuple[Any, ...]] = {
    "dtype": ("bfloat16", "float16"),
    "kv_cache_dtype": ("bfloat16", "float16", "float8_e4m3fn"),
    "head_dim": (64, 72, 80, 96, 128, 256, 512, 1024),
    "num_heads": (4, 24, 40),
    "num_kv_heads": (1, 4),
    "hidden_size": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 72, 136, 264, 520, 1032, 2056, 4104, 8200),
    "intermediate_size": (256, 264, 1024, 4096),
    "vocab_size": (32000,),
    "rotary_dim": (16, 18, 32, 34, 48, 64, 66, 128, 130, 192, 256),
    "qk_norm": ("", "head", "all"),
    "sliding_window": (False, True),
    "activation": ("silu", "gelu", "gelu_tanh"),
    "fp8_blocks": (None, (128, 128)),
    "num_experts": (0, 8, 64, 128, 160, 256, 512),
    "experts_per_token": (1, 2, 4, 8, 16),
    "moe_intermediate_size": (128, 768, 2048),
    "expert_scoring": ("softmax", "sigmoid", "sqrtsoftplus"),
    "hash_routing": (False, True),
    "mxfp4_experts": (False, True),
    "num_expert_groups": (0, 8, 32),
    "soft_cap": (False, True),
    "rotary_interleaved": (False, True),
    "latent_attention": (False, True),
    "latent_query_rank": (0, 768),
    "latent_rank": (512,),
    "latent_nope_dim": (128, 192),
    "latent_rope_dim": (64,),
    "latent_value_dim": (128, 256),
    "sparse_attention": (False, True),
    "dense_prefills": (True,),
    "index_heads": (32, 64),
    "index_head_dim": (128,),
    "index_top_k": (2048,),
    "index_interleaved": (False, True),
    "index_mxfp4": (False,),
    "gated_delta_head_dim": (0, 64, 128),
    "gated_delta_value_dim": (64, 128, 256),
    "gated_delta_key_heads": (16,),
    "gated_delta_value_heads": (32,),
    "conv_width": (4,),
    "residual_streams": (1, 2, 4),
    "float32_products": (False, True),
    "workers": (1, 2, 4, 8),
}
# Those that only compressed attention has kernels for, together.
COMPRESSED: dict[str, tuple[Any, ...]] = {
    "compressed_attention": (True,),
    "head_dim": (512,),
    "num_heads": (16, 64, 128),
    "rotary_dim": (64,),
    "kv_cache_dtype": ("bfloat16", "float16"),
    "window": (128,),
    "least_ratio": (0, 128),
    "index_ratio": (4,),
    "index_heads": (0, 32, 64),
    "index_mxfp4": (False, True),
    "index_top_k": (512, 1024),
    "latent_attention": (False,),
}


def described(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The fields of a context that describing a model sets."""
    named: set[str] = set()

    def note(**fields: Any) -> Context:
        named.update(fields)
        return Context(**fields)

    monkeypatch.setattr(selection, "Context", note)
    for family in FAMILIES:
        config = read_config(write_checkpoint(folder / family, family, **aligned(family)))
        selection.selection_context(
            config, device="cuda", capability=(9, 0), dtype="bfloat16", kv_cache_dtype="bfloat16", cuda_graphs=False,
            libraries={},
        )  # fmt: skip
    return named


def models(fields: set[str], count: int) -> list[Context]:
    rng = random.Random(1)
    chosen = {name: values for name, values in VALUES.items() if name in fields}
    plain = Context("cuda", (9, 0), hidden_size=4096, intermediate_size=4096, vocab_size=32000, rotary_dim=64)
    compressed = chosen | {name: values for name, values in COMPRESSED.items() if name in fields}
    forms = (chosen, chosen, compressed)
    return [
        replace(plain, **{name: rng.choice(values) for name, values in forms[number % len(forms)].items()})
        for number in range(count)
    ]


@pytest.mark.parametrize("arch", [80, 90, 120])
def test_every_variant_of_a_cast_can_be_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: int):
    asked = models(described(tmp_path, monkeypatch), 2500)
    needed = {variant.name for variant in plan.triton_variants(arch, asked)}
    held = {variant.name for variant in plan.triton_variants(arch)}
    assert sorted(held - needed) == []


def test_the_flags_in_use_are_those_that_describing_a_model_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert described(tmp_path, monkeypatch) & set(FLAGS) == FLAGS_IN_USE


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_in_use_brings_its_kernels_into_the_cast(monkeypatch: pytest.MonkeyPatch, flag: str):
    monkeypatch.setattr(context, "FLAGS_IN_USE", FLAGS_IN_USE - {flag})
    without = plan.triton_variants(90)
    monkeypatch.setattr(context, "FLAGS_IN_USE", FLAGS_IN_USE | {flag})
    more = plan.triton_variants(90)
    assert set(without) < set(more)
