"""The whole engine on the Triton kernels, interpreted: what layers hand to kernels is what kernels take.

Strides, dtypes, shapes and scales meet here without a GPU. Only the engine's own torch backends are compared with, in
the same dtype; those are compared with transformers in tests/parity.
"""

from __future__ import annotations

from typing import Any

import pytest

from kernels.catalogue import OPS
from tests.configured import chosen
from tests.parity.conftest import distribution, generate, make_engine, prompts, tokens
from tests.tiny import ALIGNED, FP8, write_checkpoint

SMALL = ALIGNED | {"intermediate_size": 128, "num_hidden_layers": 1}
FEW = {"num_local_experts": 4, "num_experts": 4}
AN_H100 = {"device": "cuda", "capability": (9, 0), "libraries": {"triton": "3"}}
# Family, what it changes, and the dtype of the cache.
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "qwen2, biases, tied": ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}, "bfloat16"),
    "mistral, window, wide heads": ("mistral", {"sliding_window": 12, "head_dim": 128}, "float8_e4m3fn"),
    "qwen3_moe, one layer dense": ("qwen3_moe", FEW | {"num_hidden_layers": 2, "mlp_only_layers": [1]}, "bfloat16"),
    "minimax_m2, half of each head": ("minimax_m2", FEW | {"rotary_dim": 32}, "bfloat16"),
    # All four experts for each token: rounding must not send one to another expert.
    "mixtral in fp8": ("mixtral", FEW | {"num_experts_per_tok": 4, "quantization_config": FP8}, "float8_e4m3fn"),
    "qwen3 in fp8": ("qwen3", {"quantization_config": FP8}, "bfloat16"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_computes_with_kernels_what_it_computes_with_torch(tmp_path, name):
    """A prompt in chunks, and sequences that decode beside one that is read in; every op that has a kernel gets it."""
    family, changes, cache = MODELS[name]
    checkpoint = write_checkpoint(tmp_path / "model", family, dtype="bfloat16", seed=6, scale=0.05, **SMALL | changes)
    values = {"dtype": "bfloat16", "kv_cache_dtype": cache, "max_num_batched_tokens": 16, "max_model_len": 64}
    plain = make_engine(checkpoint, **values)
    own = make_engine(checkpoint, **values, **chosen(checkpoint, None, values, **AN_H100))
    have_kernels = {op.name for op in OPS if any(backend.name == "triton" for backend in op.of("native"))}
    bound = own.loaded.selection
    assert {op for op, backend in bound.items() if backend == "triton"} == have_kernels & set(bound)
    prompt = prompts(1, (21,))["r0"]
    difference = (distribution(own, prompt) - distribution(plain, prompt)).abs().mean()
    assert difference < (0.1 if "quantization_config" in changes else 0.02)  # with FP8 activations are rounded, too
    together = generate(own, prompts(2, (1, 17)), max_tokens=2)
    assert all(len(tokens(outputs)) == 2 for outputs in together.values())
