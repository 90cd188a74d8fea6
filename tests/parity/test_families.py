"""Every family against transformers on tiny random checkpoints: equal logits, equal tokens, alone and in company."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from appliance.checkpoint.config import read_config
from tests.parity.conftest import distribution, generate, greedy, make_engine, prompts, tokens
from tests.tiny import FAMILIES, write_checkpoint
from tests.tiny_forms import as_seeing, fuse_experts
from tests.tiny_shapes import SPARSE

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, one kv head, tied, biases": (
        "llama",
        {"num_key_value_heads": 1, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, llama3 scaling": ("llama", {"rope_scaling": LLAMA3}),
    "llama, linear scaling": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama, wide heads": ("llama", {"head_dim": 48}),
    "mistral": ("mistral", {}),
    "mistral, window": ("mistral", {"sliding_window": 24, "head_dim": 24}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, window in upper layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3, yarn": ("qwen3", {"rope_scaling": YARN, "max_position_embeddings": 256}),
    "llama, gelu": ("llama", {"hidden_act": "gelu"}),
    "llama, gelu by tanh": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "mixtral": ("mixtral", {}),
    "mixtral, one of five, window": (
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 1, "intermediate_size": 36, "sliding_window": 24},
    ),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe, all of three, as they are, window": (
        "qwen3_moe",
        {"num_experts": 3, "num_experts_per_tok": 3, "norm_topk_prob": False, "use_sliding_window": True,
         "sliding_window": 30, "attention_bias": True},
    ),
    "qwen3_moe, some layers dense": (
        "qwen3_moe",
        {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3], "moe_intermediate_size": 20},
    ),
    "minimax_m2": ("minimax_m2", {}),
    "minimax_m2, whole heads, no groups": ("minimax_m2", {"rotary_dim": 32, "n_group": 0, "tie_word_embeddings": True}),
    "minimax_m2, four of seven, odd sizes": (
        "minimax_m2",
        {"num_local_experts": 7, "num_experts_per_tok": 4, "head_dim": 20, "rotary_dim": 12, "intermediate_size": 44},
    ),
    "deepseek_v3": ("deepseek_v3", {}),
    "deepseek_v3, queries from the hidden state, no groups, one kind of layer": (
        "deepseek_v3",
        {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "n_shared_experts": 2,
         "tie_word_embeddings": True, "rms_norm_eps": 1e-2},
    ),
    "deepseek_v3, yarn with its scale": (
        "deepseek_v3",
        {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, "max_position_embeddings": 256},
    ),
    "deepseek_v3, yarn with two scales, biases": (
        "deepseek_v3",
        {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.4}, "max_position_embeddings": 256,
         "attention_bias": True, "q_lora_rank": None},
    ),
    "deepseek_v3, odd sizes, one head, as they are": (
        "deepseek_v3",
        {"num_attention_heads": 1, "num_key_value_heads": 1, "qk_nope_head_dim": 20, "qk_rope_head_dim": 6,
         "v_head_dim": 28, "kv_lora_rank": 36, "norm_topk_prob": False, "moe_intermediate_size": 20},
    ),
    "deepseek_v32": ("deepseek_v32", {}),
    "deepseek_v32, yarn, no groups, biases, few tokens": (
        "deepseek_v32",
        {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, "max_position_embeddings": 256, "index_topk": 5,
         "n_group": 1, "topk_group": 1, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "glm_moe_dsa": ("glm_moe_dsa", {}),
    "glm_moe_dsa, by a pattern, kinds of layers listed": (
        "glm_moe_dsa",
        {"num_hidden_layers": 4, "indexer_types": None, "index_topk_pattern": "FSSF", "index_topk": 33,
         "mlp_layer_types": ["dense", "sparse", "dense", "sparse"], "rms_norm_eps": 1e-3, "index_head_dim": 16},
    ),
    "qwen3_next": ("qwen3_next", {}),
    "qwen3_next, most layers recurrent, one dense, biases": (
        "qwen3_next",
        {"num_hidden_layers": 4, "full_attention_interval": 4, "mlp_only_layers": [1], "attention_bias": True,
         "linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_conv_kernel_dim": 3, "norm_topk_prob": False},
    ),
    "qwen3_5": ("qwen3_5", {}),
    "qwen3_5, as listed, a value head to each key, tied": (
        "qwen3_5",
        {"num_hidden_layers": 3, "layer_types": ["full_attention", "linear_attention", "linear_attention"],
         "linear_num_key_heads": 4, "linear_key_head_dim": 20, "tie_word_embeddings": True, "head_dim": 40},
    ),
    "qwen3_5_moe": ("qwen3_5_moe", {}),
}  # fmt: skip
# Rows for copies of states, where a model has states: prefixes are continued from them.
COPIES = {"num_snapshots": 8}


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def checkpoint(request, tmp_path_factory):
    family, config = VARIANTS[request.param]
    return write_checkpoint(tmp_path_factory.mktemp("parity") / "model", family, seed=3, **config)


def test_logits_agree_in_float32(checkpoint, oracle):
    """The full distribution after prompts that are computed whole, in chunks, and from the prefix cache."""
    engine = make_engine(checkpoint, max_num_batched_tokens=32, **COPIES)
    tolerance = 2e-5 if read_config(checkpoint).latent_attention else 1e-4
    model = oracle(checkpoint)
    for prompt in [*prompts(4).values(), *prompts(4).values()]:
        with torch.inference_mode():
            expected = torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1], -1)
        torch.testing.assert_close(distribution(engine, prompt), expected, atol=tolerance, rtol=0)


def test_64_greedy_tokens_are_equal_alone_and_in_a_batch(checkpoint, oracle):
    asked = prompts(6)
    together = {name: tokens(outputs) for name, outputs in generate(make_engine(checkpoint), asked).items()}
    assert {len(written) for written in together.values()} == {64}
    assert together == greedy(oracle(checkpoint), asked, together)
    alone = generate(make_engine(checkpoint), {"r3": asked["r3"]})
    assert tokens(alone["r3"]) == together["r3"]


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5", *SPARSE])
def test_tokens_do_not_change_when_the_cache_is_too_small_for_all(tmp_path, family):
    """Preemption by recompute, chunks of odd sizes and shared prefixes give the tokens of an unhurried run."""
    checkpoint = write_checkpoint(tmp_path / "model", family, seed=4)
    shared = prompts(1, (70,))["r0"]
    asked = {name: shared[:40] + prompt for name, prompt in prompts(6, (3, 20, 33)).items()}
    calm = generate(make_engine(checkpoint, prefix_caching=False, max_num_batched_tokens=512), asked)
    tight_engine = make_engine(checkpoint, num_blocks=17, max_num_batched_tokens=23, **COPIES)
    tight = generate(tight_engine, asked)
    assert tight_engine.scheduler.num_preemptions > 0
    assert tight_engine.scheduler.prompt_tokens_cached > 0
    assert {n: tokens(o) for n, o in tight.items()} == {n: tokens(o) for n, o in calm.items()}


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
def test_fused_experts_are_the_same_model(tmp_path, oracle, family):
    """The same tokens, whether experts are stored one by one or those of a layer together."""
    apart = write_checkpoint(tmp_path / "model", family, seed=3)
    asked = prompts(4)
    expected = {name: tokens(found) for name, found in generate(make_engine(apart), asked).items()}
    fused = fuse_experts(apart)
    assert {name: tokens(found) for name, found in generate(make_engine(fused), asked).items()} == expected
    assert greedy(oracle(fused), asked, expected) == expected


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_the_language_model_of_one_that_sees_is_the_same_model(tmp_path, oracle, family):
    """In text mrope is plain RoPE; tensors that see or draft are left out."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_interleaved": True,
            "mrope_section": [3, 3, 2]}  # fmt: skip
    alone = write_checkpoint(tmp_path / "model", family, seed=3, rope_parameters=rope)
    asked = prompts(4)
    expected = {name: tokens(found) for name, found in generate(make_engine(alone), asked).items()}
    assert greedy(oracle(alone), asked, expected) == expected
    seeing = as_seeing(alone)
    assert {name: tokens(found) for name, found in generate(make_engine(seeing), asked).items()} == expected


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.03), ("float16", 0.003)])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_stays_near_transformers_in_the_same_dtype(tmp_path, oracle, family, dtype, tolerance):
    """Rounding differs with the order of sums, so the bound is on the mean difference of the log probabilities."""
    checkpoint = write_checkpoint(tmp_path / "model", family, dtype=dtype, seed=6, scale=0.1)
    prompt = prompts(3)["r2"]
    found = distribution(make_engine(checkpoint, dtype=dtype), prompt)
    with torch.inference_mode():
        logits = oracle(checkpoint, getattr(torch, dtype))(torch.tensor([prompt])).logits[0, -1].float()
    assert (found - torch.log_softmax(logits, -1)).abs().mean() < tolerance
