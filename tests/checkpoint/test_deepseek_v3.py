"""DeepSeek V3's config.json: latent attention, its scale and its experts; what no published model says is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint import CheckpointError
from appliance.checkpoint.cache_specs import MLA, bytes_per_token
from appliance.checkpoint.config import ModelConfig, read_config
from appliance.checkpoint.drafting import with_head
from appliance.checkpoint.families.latent_attention import from_hidden
from appliance.checkpoint.layout import expected_tensors, is_ignored, weight_bytes
from appliance.checkpoint.model_config import LatentAttention
from appliance.checkpoint.selection import selection_context
from kernels.catalogue import OPS
from kernels.selection import explain
from tests.tiny import BASE, FAMILIES, FP8, aligned

OMIT = object()
YARN = {
    "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
PUBLISHED = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
    "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "max_position_embeddings": 163840, "rope_scaling": YARN, "num_nextn_predict_layers": 1,
    "quantization_config": FP8, "torch_dtype": "bfloat16",
}  # fmt: skip


def config_of(folder: Path, **changes: Any) -> ModelConfig:
    folder.mkdir(parents=True, exist_ok=True)
    merged = BASE | FAMILIES["deepseek_v3"] | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in merged.items() if value is not OMIT}))
    return read_config(folder)


def test_the_published_model(tmp_path: Path) -> None:
    """Its numbers: the cache, the scale of the scores, the layers, and 671 billion weights, of which kv_b_proj is
    multiplied out and the biases of the routers are kept in float32."""
    config = config_of(tmp_path / "m", **PUBLISHED)
    assert config.cache_specs == (MLA(rank=512, rope_dim=64),) * 61
    assert bytes_per_token(config.cache_specs, 2) == 70_272
    assert (config.head_dim, config.num_key_value_heads, config.rotary_dim) == (576, 128, 64)
    assert config.context_length == 163_840
    mixer = config.latent_attention
    assert isinstance(mixer, LatentAttention)
    assert (mixer.query_dim, mixer.latent_dim) == (192, 576)
    assert mixer.scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert config.experts is not None
    assert config.experts.shared is not None
    assert (min(config.experts.layers), len(config.experts.layers)) == (3, 58)
    assert config.experts.shared.intermediate_size == 2048
    numbers = 671_026_419_200  # as the paper rounds to 671B
    biases = 58 * 256
    assert weight_bytes(config, 2, keep_fp8=False) == 2 * (numbers + biases)
    in_fp8 = weight_bytes(config, 2, keep_fp8=True)
    expanded = 61 * 128 * 256 * 512  # of kv_b_proj, a byte more each
    assert numbers + expanded < in_fp8 < 1.01 * numbers


@pytest.mark.parametrize(
    ("changes", "layers"),
    [({}, {1, 2}), ({"first_k_dense_replace": 0, "moe_layer_freq": 2}, {0, 2}), ({"first_k_dense_replace": 3}, set()),
     ({"first_k_dense_replace": OMIT, "num_hidden_layers": 5}, {3, 4})],
)  # fmt: skip
def test_which_layers_are_sparse(tmp_path: Path, changes: dict[str, Any], layers: set[int]) -> None:
    config = config_of(tmp_path / "m", **changes)
    assert {layer for layer in range(config.num_hidden_layers) if config.is_sparse(layer)} == layers


@pytest.mark.parametrize(("given", "ignored"), [(OMIT, {3}), (0, set()), (2, {3, 4})])
def test_layers_that_draft_are_ignored(tmp_path: Path, given: Any, ignored: set[int]) -> None:
    """As many as the config says, behind the last."""
    config = config_of(tmp_path / "m", num_nextn_predict_layers=given)
    names = {layer: f"model.layers.{layer}.mlp.gate.weight" for layer in (1, 2, 3, 4, 30)}
    assert {layer for layer, name in names.items() if is_ignored(config, name)} == ignored


@pytest.mark.parametrize(("given", "drafts"), [(1, True), (2, True), (0, False)])
def test_the_first_of_them_becomes_a_layer_where_it_drafts(tmp_path: Path, given: int, drafts: bool) -> None:
    """With experts, tensors of its own, and copies of the model's that are ignored."""
    plain = config_of(tmp_path / "m", num_nextn_predict_layers=given)
    config = with_head(plain)
    assert with_head(config) == config
    assert (config.drafts, config.num_decoder_layers) == (drafts, plain.num_hidden_layers)
    own = expected_tensors(config).keys() - expected_tensors(plain).keys()
    at = "model.layers.3."
    wanted = {at + name for name in ("eh_proj.weight", "enorm.weight", "mlp.gate.weight", "self_attn.o_proj.weight")}
    assert (wanted <= own) == drafts
    assert not any(is_ignored(config, name) for name in own)
    if drafts:
        assert is_ignored(config, at + "embed_tokens.weight")
        assert is_ignored(config, "model.layers.4.eh_proj.weight") == (given == 2)
        assert len(config.caches_of_layers) == 4


@pytest.mark.parametrize(("given", "number"), [(None, 0), (0, 0), (OMIT, 0), (3, 3)])
def test_experts_that_all_tokens_share(tmp_path: Path, given: Any, number: int) -> None:
    """Together one layer, or none."""
    config = config_of(tmp_path / "m", n_shared_experts=given)
    assert config.experts is not None
    shared = config.experts.shared
    assert (shared.intermediate_size if shared else 0) == 48 * number
    assert any("shared_experts" in name for name in expected_tensors(config)) == (number > 0)


@pytest.mark.parametrize("absent", [OMIT, None], ids=["absent", "null"])
def test_what_configs_of_the_family_leave_out(tmp_path: Path, absent: Any) -> None:
    """Routing as in the published model; null says that there are no groups."""
    left_out = dict.fromkeys(
        ("topk_group", "norm_topk_prob", "routed_scaling_factor", "first_k_dense_replace", "num_nextn_predict_layers"),
        absent,
    )
    config = config_of(
        tmp_path / "a", **left_out, n_group=OMIT, n_routed_experts=16, num_experts_per_tok=8, num_hidden_layers=5
    )
    experts = config.experts
    assert experts is not None
    assert experts.layers == {3, 4}
    assert config.ignored == ("model.layers.5.",)
    routing = experts.routing
    assert (routing.num_groups, routing.top_groups, routing.renormalise, routing.scale) == (8, 4, True, 2.5)
    plain = config_of(tmp_path / "b", n_group=None).experts
    assert plain is not None
    assert not plain.routing.grouped


def test_an_error_quotes_no_value_that_is_not_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_of(tmp_path / "m", n_group=OMIT, n_routed_experts=12)
    assert (caught.value.field, caught.value.value) == ("n_group", None)
    with pytest.raises(CheckpointError) as caught:
        config_of(tmp_path / "m", n_group=8, n_routed_experts=12)
    assert (caught.value.field, caught.value.value) == ("n_group", 8)


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        (None, 1.0),
        ({"rope_type": "linear", "factor": 4.0}, 1.0),
        ({"rope_type": "yarn", "factor": 4.0}, 1.0),
        ({"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0}, 1.0),
        ({"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}, 0.05 * math.log(4) + 1),
        ({"rope_type": "linear", "factor": 4.0, "mscale_all_dim": 0.5}, 0.05 * math.log(4) + 1),
    ],
)
def test_scaled_positions_scale_the_scores(tmp_path: Path, scaling: dict[str, Any] | None, factor: float) -> None:
    mixer = config_of(tmp_path / "m", rope_scaling=scaling).latent_attention
    assert mixer is not None
    assert mixer.scale == pytest.approx(24**-0.5 * factor**2)


def test_selection_is_asked_for_latents(tmp_path: Path) -> None:
    """All that the ops of latent attention depend on."""
    config = config_of(tmp_path / "m", num_hidden_layers=1)
    context = selection_context(
        config, device="cpu", capability=None, dtype="float32", kv_cache_dtype="float32", cuda_graphs=False,
        libraries={},
    )  # fmt: skip
    assert context.latent_attention
    assert (context.latent_query_rank, context.latent_shape, context.head_dim) == (24, (32, 16, 8, 16), 40)
    without = selection_context(
        config_of(tmp_path / "n", q_lora_rank=None), device="cpu", capability=None, dtype="float32",
        kv_cache_dtype="float32", cuda_graphs=False, libraries={},
    )  # fmt: skip
    assert without.latent_query_rank == 0


@pytest.mark.parametrize(
    ("changes", "op", "chosen"),
    [
        ({}, "latent_cache", "triton"),
        ({"q_lora_rank": 100}, "latent_cache", "torch"),
        ({"q_lora_rank": None}, "latent_cache", "triton"),
        ({}, "gated_activation", "triton"),
        ({"moe_intermediate_size": 100}, "gated_activation", "torch"),
        ({"moe_intermediate_size": 100, "n_shared_experts": 2}, "gated_activation", "triton"),
        ({"moe_intermediate_size": 100, "n_shared_experts": None}, "gated_activation", "triton"),
    ],
)
def test_rows_that_do_not_fill_16_bytes_are_left_to_torch(
    tmp_path: Path, changes: dict[str, Any], op: str, chosen: str
) -> None:
    """The latents of queries lie before those of the cache; shared experts have a size of their own."""
    config = config_of(tmp_path / "m", **aligned("deepseek_v3") | changes)
    context = selection_context(
        config, device="cuda", capability=(9, 0), dtype="bfloat16", kv_cache_dtype="bfloat16", cuda_graphs=False,
        libraries={},
    )  # fmt: skip
    assert {choice.op.name: choice.chosen.name for choice in explain(OPS, context) if choice.chosen}[op] == chosen


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"topk_method": 7}, "topk_method"),
        ({"scoring_func": ["sigmoid"]}, "scoring_func"),
        ({"rope_interleave": "false"}, "rope_interleave"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"num_key_value_heads": 8}, "num_key_value_heads"),
        ({"kv_lora_rank": OMIT}, "kv_lora_rank"),
        ({"kv_lora_rank": 0}, "kv_lora_rank"),
        ({"q_lora_rank": 0}, "q_lora_rank"),
        ({"q_lora_rank": OMIT}, "q_lora_rank"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
        ({"qk_rope_head_dim": None}, "qk_rope_head_dim"),
        ({"qk_nope_head_dim": "16"}, "qk_nope_head_dim"),
        ({"v_head_dim": -1}, "v_head_dim"),
        ({"partial_rotary_factor": 0.5}, "qk_rope_head_dim"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace"),
        ({"moe_layer_freq": 0}, "moe_layer_freq"),
        ({"n_routed_experts": OMIT}, "n_routed_experts"),
        ({"n_shared_experts": 1.5}, "n_shared_experts"),
        ({"num_nextn_predict_layers": True}, "num_nextn_predict_layers"),
        ({"n_group": 3}, "n_group"),
        ({"n_group": 8}, "n_group"),
        ({"num_experts_per_tok": 5}, "topk_group"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2, "mscale_all_dim": "1"}}, "rope_scaling.mscale_all_dim"),
    ],
)
def test_nonsense_about_latents_and_experts_is_named(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_of(tmp_path / "m", **changes)
    assert (caught.value.id, caught.value.field) == ("config-invalid", field)
    assert caught.value.fix.text


@pytest.mark.parametrize(
    "changes", [{"topk_method": "group_limited_greedy"}, {"scoring_func": "softmax"}, {"rope_interleave": False}]
)
def test_a_choice_that_the_engine_lacks_is_no_fault_of_the_file(tmp_path: Path, changes: dict[str, Any]) -> None:
    [(field, value)] = changes.items()
    with pytest.raises(CheckpointError) as caught:
        config_of(tmp_path / "m", **changes)
    assert (caught.value.id, caught.value.field, caught.value.value) == ("architecture-unsupported", field, value)


@pytest.mark.parametrize(
    ("changes", "together"),
    [
        ({}, True),
        ({"q_lora_rank": 64}, False),
        ({"modules_to_not_convert": ["kv_a_proj_with_mqa"]}, False),
        ({"modules_to_not_convert": ["self_attn"]}, True),
        ({"q_lora_rank": None}, True),
        ({"q_lora_rank": None, "attention_bias": True}, False),
    ],
)
def test_what_can_be_one_product_is(tmp_path: Path, changes: dict[str, Any], together: bool) -> None:
    """Blocks of scales that would reach from one projection into the next keep them apart, as do other formats."""
    listed = {key: value for key, value in changes.items() if key == "modules_to_not_convert"}
    shape = aligned("deepseek_v3") | {key: value for key, value in changes.items() if key not in listed}
    config = config_of(tmp_path / "m", **shape, quantization_config=FP8 | listed)
    assert [len(product) for product in from_hidden(config, 0)] == ([2] if together else [1, 1])
