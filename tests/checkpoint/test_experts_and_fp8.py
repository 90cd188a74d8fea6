"""Sparse models and block-scaled weights in config.json: what is read, what is counted, and what is refused by name."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.checkpoint import CheckpointError
from appliance.checkpoint.config import read_config
from appliance.checkpoint.layout import FP8 as E4M3
from appliance.checkpoint.layout import SCALE, expected_tensors, weight_bytes
from appliance.checkpoint.quantization import BlockFp8
from appliance.checkpoint.safetensors import read_index
from appliance.checkpoint.selection import selection_context
from appliance.checkpoint.sharding import obstacle
from kernels.context import Context
from tests.tiny import ALIGNED, BASE, FAMILIES, FP8, aligned, block_fp8, write_checkpoint
from tests.tiny_shapes import SPARSE

OMIT = object()


def write(folder: Path, family: str, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    merged = BASE | FAMILIES[family] | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in merged.items() if v is not OMIT}))
    return folder


MIXTRAL_8X7B = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
}  # fmt: skip
QWEN3_30B_A3B = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "config", "published"),
    [("mixtral", MIXTRAL_8X7B, 93_405_585_408), ("qwen3_moe", QWEN3_30B_A3B, 61_064_245_248)],
)
def test_the_weights_of_known_models(tmp_path: Path, family: str, config: dict[str, Any], published: int) -> None:
    """`total_size` of the published checkpoints' indexes, all in bfloat16."""
    assert weight_bytes(read_config(write(tmp_path / "m", family, **config)), 2, keep_fp8=True) == published


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5", *SPARSE])
def test_the_layout_of_block_scaled_weights(tmp_path: Path, family: str) -> None:
    """Names, shapes and formats as in the checkpoint; embedding, head, norms and routers stay as they are."""
    quantised = aligned(family) | {"quantization_config": block_fp8(family)}
    folder = write_checkpoint(tmp_path / "m", family, **quantised)
    index, expected = read_index(folder), expected_tensors(read_config(folder))
    assert {name: entry.shape for name, entry in index.tensors.items()} == {n: t.shape for n, t in expected.items()}
    in_fp8 = {name for name, tensor in expected.items() if tensor.dtype == E4M3}
    assert in_fp8 == {name for name, entry in index.tensors.items() if entry.dtype == "F8_E4M3"}
    assert all(name + SCALE in expected for name in in_fp8)
    in_full = ("norm", "embed", "lm_head", "gate.weight", "conv1d", "in_proj_b", "in_proj_a")
    assert not any(part in name for name in in_fp8 for part in in_full)


@pytest.mark.parametrize(
    ("skipped", "module", "covered"),
    [
        ([], "model.layers.0.mlp.down_proj", True),
        (["lm_head"], "model.layers.0.mlp.down_proj", True),
        (["model.layers.1"], "model.layers.1.mlp.down_proj", False),
        (["model.layers.1"], "model.layers.11.mlp.down_proj", True),
        (["model.layers.1.mlp.gate"], "model.layers.1.mlp.gate_proj", True),
        (["mlp.down_proj"], "model.layers.1.mlp.down_proj", False),
        (["proj"], "model.layers.1.mlp.down_proj", True),
    ],
)
def test_modules_are_left_out_by_whole_parts_of_their_names(skipped: list[str], module: str, covered: bool) -> None:
    """`layers.1` is not `layers.11`, and the router `gate` is not `gate_proj`."""
    assert BlockFp8(frozenset(skipped)).covers(module) == covered


@pytest.mark.parametrize(
    ("family", "changes", "field"),
    [
        ("llama", {"quant_method": "awq"}, "quantization_config"),
        ("llama", {"quant_method": OMIT}, "quantization_config"),
        ("llama", {"quant_method": 7}, "quantization_config"),
        ("llama", {"activation_scheme": "static"}, "quantization_config.activation_scheme"),
        ("llama", {"weight_block_size": OMIT}, "quantization_config.weight_block_size"),
        ("llama", {"weight_block_size": [64, 64]}, "quantization_config.weight_block_size"),
        ("llama", {"fmt": "e5m2"}, "quantization_config.fmt"),
        ("llama", {"scale_fmt": "e5m2"}, "quantization_config.scale_fmt"),
        ("llama", {"expert_dtype": "fp4"}, "quantization_config.expert_dtype"),
        ("llama", {"modules_to_convert": ["model.embed_tokens"]}, "quantization_config.modules_to_convert"),
        ("llama", {"modules_to_not_convert": ["re:.*gate"]}, "quantization_config.modules_to_not_convert"),
        ("llama", {"ignored_layers": "lm_head"}, "quantization_config.ignored_layers"),
        ("llama", {"modules_to_not_convert": ["model.layers.1.self_attn.k_proj"]}, "quantization_config"),
        ("mixtral", {"modules_to_not_convert": ["model.layers.1.block_sparse_moe.experts.3"]}, "quantization_config"),
    ],
)
def test_other_quantisations_are_refused(tmp_path: Path, family: str, changes: dict[str, Any], field: str) -> None:
    """By the key that differs from what the engine runs, with what it runs and the way out."""
    config = {key: value for key, value in (FP8 | changes).items() if value is not OMIT}
    with pytest.raises(CheckpointError) as caught:
        read_config(write(tmp_path / "m", family, **ALIGNED, quantization_config=config))
    error = caught.value
    assert error.field == field
    lists = ("quantization_config.modules_to_not_convert", "quantization_config.ignored_layers")
    assert error.id == ("config-invalid" if field in lists else "quantization-unsupported")


@pytest.mark.parametrize(
    ("family", "changes", "module"),
    [
        ("llama", {"num_key_value_heads": 1}, "self_attn.k_proj"),
        ("llama", {"intermediate_size": 192}, "mlp.gate_proj"),
        ("llama", {"hidden_size": 200, "head_dim": 64}, "self_attn.q_proj"),
        ("mixtral", {"intermediate_size": 192}, "experts.0.w1"),
    ],
)
def test_shapes_that_no_product_takes_are_refused(
    tmp_path: Path, family: str, changes: dict[str, Any], module: str
) -> None:
    """A block of 128 x 128 must not reach from one projection into the next that is computed with it."""
    with pytest.raises(CheckpointError, match=module) as caught:
        read_config(write(tmp_path / "m", family, **ALIGNED | changes, quantization_config=FP8))
    assert caught.value.id == "quantization-unsupported"


def test_a_block_scaled_model_is_asked_for_alike_everywhere(tmp_path: Path) -> None:
    """Selection knows about the blocks where they are kept, and only there."""
    config = read_config(write(tmp_path / "m", "qwen3_moe", **ALIGNED, quantization_config=FP8))

    def blocks(device: str, dtype: str) -> tuple[int, int] | None:
        context = selection_context(
            config, device=device, capability=None, dtype=dtype, kv_cache_dtype=dtype, cuda_graphs=False, libraries={}
        )
        assert (context.num_experts, context.experts_per_token, context.moe_intermediate_size) == (8, 2, 128)
        return context.fp8_blocks

    assert blocks("cuda", "bfloat16") == blocks("cuda", "float16") == (128, 128)
    assert blocks("cuda", "float32") is blocks("cpu", "float32") is None


def test_every_part_of_the_question_follows_from_the_config(tmp_path: Path) -> None:
    """What a family of ours can have is asked for; what none has stays at its default."""
    changes = {"head_dim": 128, "n_group": 4, "topk_group": 2, "hidden_act": "gelu_new", "quantization_config": FP8}
    config = read_config(write(tmp_path / "m", "minimax_m2", **ALIGNED | changes))
    context = selection_context(
        config, device="cuda", capability=(9, 0), dtype="bfloat16", kv_cache_dtype="float8_e4m3fn", cuda_graphs=True,
        libraries={"triton": "3.7"}, workers=2,
    )  # fmt: skip
    assert context == Context(
        "cuda", (9, 0), "bfloat16", head_dim=128, num_heads=4, num_kv_heads=2, cuda_graphs=True, workers=2,
        libraries={"triton": "3.7"}, kv_cache_dtype="float8_e4m3fn", hidden_size=192, intermediate_size=256,
        vocab_size=512, rotary_dim=16, qk_norm="all", activation="gelu_tanh", fp8_blocks=(128, 128), num_experts=8,
        experts_per_token=2, moe_intermediate_size=256, expert_scoring="sigmoid", num_expert_groups=4,
        dense_layers=False,
    )  # fmt: skip
    # Of quantised weights reading the config lets through only those in FP8 blocks: other methods are known to
    # `outline` alone, which describes models that only vLLM runs.
    of_latents = {f"latent_{part}" for part in ("attention", "query_rank", "rank", "rope_dim", "nope_dim", "value_dim")}
    of_latents |= {"dense_prefills", "index_heads", "index_head_dim", "index_top_k", "index_interleaved"}
    of_v4 = {"compressed_attention", "window", "least_ratio", "index_ratio", "residual_streams", "hash_routing"}
    of_v4 |= {"mxfp4_experts", "index_mxfp4", "float32_products", "grouped_products"}
    none_has = of_latents | of_v4 | {"rotary_interleaved", "attention_sinks", "soft_cap", "sparse_attention",
                "quantization", "cast", "engine", "left_to_engine",
                "sliding_window", "cpu_features", "row", "grouped_row"}  # fmt: skip
    hybrid = selection_context(
        read_config(write(tmp_path / "h", "qwen3_next")), device="cpu", capability=None, dtype="float32",
        kv_cache_dtype="", cuda_graphs=False, libraries={},
    )  # fmt: skip
    of_hybrids = {
        "norm_offset": 1.0, "gated_delta_head_dim": 16, "gated_delta_value_dim": 24, "gated_delta_key_heads": 2,
        "gated_delta_value_heads": 4, "conv_width": 4, "shared_intermediate_size": 40,
    }  # fmt: skip
    assert {name: getattr(hybrid, name) for name in of_hybrids} == of_hybrids
    none_has |= of_hybrids.keys()
    default = Context("cpu")
    asked = {field.name for field in fields(Context) if getattr(context, field.name) != getattr(default, field.name)}
    assert asked | none_has == {field.name for field in fields(Context)}
    window = read_config(write(tmp_path / "w", "mistral", sliding_window=8))
    assert selection_context(
        window,
        device="cpu",
        capability=None,
        dtype="float32",
        kv_cache_dtype="float32",
        cuda_graphs=False,
        libraries={},
    ).sliding_window


def test_which_layers_are_sparse(tmp_path: Path) -> None:
    """As Qwen3-MoE's two keys say; a model without experts is dense."""
    config = read_config(
        write(tmp_path / "a", "qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])
    )
    assert config.experts is not None
    assert config.experts.layers == {1, 5}
    assert read_config(write(tmp_path / "b", "qwen3_moe", num_experts=0)).experts is None
    assert read_config(write(tmp_path / "c", "qwen3_moe", mlp_only_layers=[0, 1])).experts is None


@pytest.mark.parametrize(("groups", "num_groups"), [(OMIT, 0), (None, 0), (0, 0), (1, 0), (4, 4)])
def test_no_groups_are_no_groups_however_it_is_said(tmp_path: Path, groups: Any, num_groups: int) -> None:
    """MiniMax-M2's configs say 0, null or nothing; grouped routing must not be entered then."""
    config = read_config(write(tmp_path / "m", "minimax_m2", n_group=groups, topk_group=2))
    assert config.experts is not None
    assert config.experts.routing.num_groups == num_groups
    assert config.experts.routing.grouped == (num_groups > 1)


def test_partial_rotary_embedding_in_both_spellings(tmp_path: Path) -> None:
    """A number of dimensions, or their share, which goes before it."""
    assert read_config(write(tmp_path / "a", "minimax_m2")).rotary_dim == 16
    assert read_config(write(tmp_path / "b", "minimax_m2", partial_rotary_factor=0.25)).rotary_dim == 8
    rope = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.75}
    assert read_config(write(tmp_path / "c", "minimax_m2", rotary_dim=OMIT, rope_parameters=rope)).rotary_dim == 24
    assert read_config(write(tmp_path / "d", "minimax_m2", rotary_dim=OMIT)).rotary_dim == 32


@pytest.mark.parametrize(
    ("family", "changes", "field"),
    [
        ("mixtral", {"num_local_experts": OMIT}, "num_local_experts"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts"),
        ("mixtral", {"num_local_experts": 65536, "num_hidden_layers": 4096}, "num_local_experts"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("qwen3_moe", {"moe_intermediate_size": OMIT}, "moe_intermediate_size"),
        ("qwen3_moe", {"mlp_only_layers": 1}, "mlp_only_layers"),
        ("qwen3_moe", {"mlp_only_layers": ["0"]}, "mlp_only_layers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("minimax_m2", {"scoring_func": "tanh"}, "scoring_func"),
        ("minimax_m2", {"qk_norm_type": "per_head"}, "qk_norm_type"),
        ("minimax_m2", {"shared_intermediate_size": 64}, "shared_intermediate_size"),
        ("minimax_m2", {"attn_type_list": [1, 0]}, "attn_type_list"),
        ("minimax_m2", {"n_group": 3, "topk_group": 1}, "n_group"),
        ("minimax_m2", {"n_group": 8, "topk_group": 1}, "n_group"),
        ("minimax_m2", {"n_group": 4, "topk_group": OMIT}, "topk_group"),
        ("minimax_m2", {"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, "topk_group"),
        ("minimax_m2", {"rotary_dim": 33}, "rotary_dim"),
        ("minimax_m2", {"rotary_dim": 15}, "rotary_dim"),
    ],
)
def test_nonsense_about_experts_is_named(tmp_path: Path, family: str, changes: dict[str, Any], field: str) -> None:
    """And what no published model has is refused rather than ignored."""
    with pytest.raises(CheckpointError) as caught:
        read_config(write(tmp_path / "m", family, **changes))
    assert (caught.value.id, caught.value.field) == ("config-invalid", field)


VALUES = (
    st.none() | st.booleans() | st.integers(-2, 300) | st.floats() | st.text(max_size=6)
    | st.lists(st.integers(-1, 4) | st.text(max_size=3), max_size=3)
    | st.sampled_from([0, 1, 2, 4, 8, 128, "fp8", "sigmoid", [128, 128], ["lm_head"], FP8])
)  # fmt: skip
KEYS = [
    "num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
    "decoder_sparse_step", "mlp_only_layers", "scoring_func", "use_routing_bias", "n_group", "topk_group",
    "routed_scaling_factor", "rotary_dim", "partial_rotary_factor", "qk_norm_type", "use_qk_norm", "attn_type_list",
    "quantization_config", "num_hidden_layers", "head_dim", "n_routed_experts", "n_shared_experts",
    "first_k_dense_replace", "moe_layer_freq", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "topk_method", "rope_interleave", "num_nextn_predict_layers", "num_key_value_heads",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    family=st.sampled_from(SPARSE),
    changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=4),
    quantised=st.none() | st.dictionaries(st.sampled_from([*FP8, "modules_to_not_convert", "scale_fmt"]), VALUES),
)
def test_any_sparse_config_is_read_or_refused(
    tmp_path_factory: Any, family: str, changes: dict[str, Any], quantised: dict[str, Any] | None
) -> None:
    """Any JSON under any key: tensors that can be listed, or a CheckpointError."""
    if quantised is not None:
        changes = aligned(family) | changes | {"quantization_config": FP8 | quantised}
    folder = write(tmp_path_factory.getbasetemp() / "any-sparse", family, **changes)
    try:
        config = read_config(folder)
    except CheckpointError as error:
        assert msgspec.json.encode(error.finding())  # noqa: PT017
        return
    assert 0 < weight_bytes(config, 2, keep_fp8=True) <= weight_bytes(config, 4, keep_fp8=False)
    assert config.rotary_dim % 2 == 0
    if config.experts is not None:
        assert 1 <= config.experts.routing.top_k <= config.experts.num_experts


def test_every_part_of_a_fused_product_is_cut_between_blocks(tmp_path: Path) -> None:
    """Queries and keys of 128 rows each, values of 192 behind them."""
    sizes = {
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 128,
        "linear_value_head_dim": 192, "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256, "hidden_size": 256,
    }  # fmt: skip
    changes = aligned("qwen3_5_moe") | sizes | {"quantization_config": block_fp8("qwen3_5_moe")}
    config = read_config(write(tmp_path, "qwen3_5_moe", **changes))
    assert obstacle(config, 1) is None
    why = obstacle(config, 2)
    assert why is not None
    assert "192" in why
    assert ".in_proj_qkv" in why
