"""The config.json of models with indexers: DeepSeek V3.2 and GLM 5, 5.1 and 5.2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint import CheckpointError
from appliance.checkpoint.cache_specs import MLA, Indexer, bytes_per_token
from appliance.checkpoint.config import ModelConfig, read_config
from appliance.checkpoint.layout import expected_tensors, is_ignored, weight_bytes
from appliance.checkpoint.selection import selection_context
from kernels.catalogue import OPS
from kernels.selection import explain
from tests.checkpoint.test_deepseek_v3 import PUBLISHED as DEEPSEEK_V3
from tests.tiny import BASE, FAMILIES, FP8, aligned

OMIT = object()
V32: dict[str, Any] = DEEPSEEK_V3 | {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
GLM: dict[str, Any] = {
    "vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048,
    "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 256,
    "kv_lora_rank": 512, "q_lora_rank": 2048, "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192,
    "head_dim": 64, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "max_position_embeddings": 202752, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "num_nextn_predict_layers": 1, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
    "indexer_types": OMIT, "torch_dtype": "bfloat16",
}  # fmt: skip
GLM_52: dict[str, Any] = GLM | {"index_topk_freq": 4, "index_skip_topk_offset": 3, "max_position_embeddings": 1048576}


def config_of(folder: Path, family: str = "deepseek_v32", **changes: Any) -> ModelConfig:
    folder.mkdir(parents=True, exist_ok=True)
    merged = BASE | FAMILIES[family] | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in merged.items() if value is not OMIT}))
    return read_config(folder)


def own(config: ModelConfig) -> list[int]:
    return [number for number, layer in enumerate(config.layers) if layer.index is not None]


def test_the_published_models(tmp_path: Path) -> None:
    """What a token takes of the cache: latents and keys of every layer, or only of the layers with indexers."""
    v32 = config_of(tmp_path / "a", **V32)
    assert v32.caches_of_layers == ((MLA(rank=512, rope_dim=64), Indexer(head_dim=128)),) * 61
    assert bytes_per_token(v32.cache_specs, 2) == 70_272 + 8_052
    glm = config_of(tmp_path / "b", "glm_moe_dsa", **GLM)
    assert len(own(glm)) == 78
    assert glm.rms_norm_eps == BASE["rms_norm_eps"]
    shared = config_of(tmp_path / "c", "glm_moe_dsa", **GLM_52)
    assert own(shared) == [0, 1, 2, *range(6, 78, 4)]
    assert bytes_per_token(shared.cache_specs, 2) == 78 * 1152 + 2_772
    for config, interleaved in ((v32, False), (glm, True)):
        assert config.latent_attention is not None
        assert config.latent_attention.indexing is not None
        assert config.latent_attention.indexing.interleaved == interleaved
    indexers = 61 * (8192 * 1536 + 128 * 7168 + 64 * 7168 + 256)
    without = weight_bytes(config_of(tmp_path / "d", "deepseek_v3", **DEEPSEEK_V3), 2, keep_fp8=False)
    in_full = 61 * (64 * 7168 + 256)  # of heads and norms, in float32
    assert weight_bytes(v32, 2, keep_fp8=False) - without == 2 * indexers + 2 * in_full


def test_heads_of_an_indexer_and_its_norm_stay_in_float32(tmp_path: Path) -> None:
    """Whatever `quantization_config` says; its projections are in FP8."""
    tensors = expected_tensors(config_of(tmp_path / "m", **aligned("deepseek_v32"), quantization_config=FP8))
    at = "model.layers.0.self_attn.indexer."
    assert {name.removeprefix(at): tensor.dtype for name, tensor in tensors.items() if name.startswith(at)} == {
        "wq_b.weight": "float8_e4m3fn", "wq_b.weight_scale_inv": "float32", "wk.weight": "float8_e4m3fn",
        "wk.weight_scale_inv": "float32", "k_norm.weight": "float32", "k_norm.bias": "float32",
        "weights_proj.weight": "float32",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"indexer_types": ["full", "full", "shared"]}, [0, 1]),
        ({"indexer_types": None, "index_topk_pattern": "FSF"}, [0, 2]),
        ({"indexer_types": None, "index_topk_pattern": ["full", "shared", "shared"]}, [0]),
        ({"indexer_types": None, "index_topk_freq": 2, "index_skip_topk_offset": 1, "num_hidden_layers": 5}, [0, 2, 4]),
        ({"indexer_types": None, "index_topk_freq": 2, "num_hidden_layers": 5}, [0, 1, 3]),
        ({"indexer_types": None}, [0, 1, 2]),
    ],
)  # fmt: skip
def test_which_layers_have_indexers(tmp_path: Path, changes: dict[str, Any], layers: list[int]) -> None:
    """Others have no weights for one, and those that a checkpoint holds all the same are ignored."""
    config = config_of(tmp_path / "m", "glm_moe_dsa", **changes)
    assert own(config) == layers
    tensors = expected_tensors(config)
    for layer in range(config.num_hidden_layers):
        name = f"model.layers.{layer}.self_attn.indexer.wk.weight"
        assert (name in tensors) == (layer in layers) != is_ignored(config, name)


@pytest.mark.parametrize("given", [True, False, OMIT, None])
@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa"])
def test_how_indexers_turn(tmp_path: Path, family: str, given: Any) -> None:
    """As the config says, or else as the family's published models do."""
    mixer = config_of(tmp_path / "m", family, indexer_rope_interleave=given).latent_attention
    assert mixer is not None
    assert mixer.indexing is not None
    assert mixer.indexing.interleaved == (given if isinstance(given, bool) else family == "glm_moe_dsa")


def test_sparse_layers_may_be_listed(tmp_path: Path) -> None:
    config = config_of(tmp_path / "m", mlp_layer_types=["sparse", "dense", "sparse"], first_k_dense_replace=3)
    assert config.experts is not None
    assert config.experts.layers == {0, 2}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"index_n_heads": 0}, "index_n_heads"),
        ({"index_head_dim": 4}, "index_head_dim"),
        ({"index_topk": "2048"}, "index_topk"),
        ({"index_topk": 0}, "index_topk"),
        ({"indexer_rope_interleave": 1}, "indexer_rope_interleave"),
        ({"indexer_types": ["full", "shared"]}, "indexer_types"),
        ({"indexer_types": ["full", "none", "full"]}, "indexer_types"),
        ({"indexer_types": ["shared", "full", "full"]}, "indexer_types"),
        ({"index_topk_pattern": "FS"}, "index_topk_pattern"),
        ({"index_topk_pattern": "FSX"}, "index_topk_pattern"),
        ({"index_topk_freq": 0}, "index_topk_freq"),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 0}, "index_skip_topk_offset"),
        ({"mlp_layer_types": ["dense"] * 4}, "mlp_layer_types"),
    ],
)
def test_nonsense_about_indexers_is_named(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_of(tmp_path / "m", **changes)
    assert (caught.value.id, caught.value.field) == ("config-invalid", field)
    assert caught.value.fix.text


def test_keys_that_no_transform_fits_are_no_fault_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_of(tmp_path / "m", index_head_dim=96)
    assert (caught.value.id, caught.value.field) == ("architecture-unsupported", "index_head_dim")


@pytest.mark.parametrize(
    ("changes", "torch"),
    [
        ({}, set()),
        ({"index_n_heads": 48}, {"indexer"}),
        ({"index_head_dim": 64}, {"index_cache", "indexer"}),
        ({"kv_lora_rank": 256}, {"latent_cache", "mla_attention", "sparse_mla"}),
    ],
)
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)])
def test_every_gpu_has_kernels_for_published_shapes(
    tmp_path: Path, changes: dict[str, Any], torch: set[str], capability: tuple[int, int]
) -> None:
    """Of other shapes torch computes what no kernel does, and then there are no CUDA graphs."""
    config = config_of(tmp_path / "m", **aligned("deepseek_v32") | changes)
    context = selection_context(
        config, device="cuda", capability=capability, dtype="bfloat16", kv_cache_dtype="bfloat16", cuda_graphs=True,
        libraries={"triton": "3.7"},
    )  # fmt: skip
    ops = {"latent_cache", "mla_attention", "index_cache", "indexer", "sparse_mla"}
    chosen = {choice.op.name: choice.chosen for choice in explain(OPS, context) if choice.op.name in ops}
    assert {name: backend.name for name, backend in chosen.items() if backend} == {
        name: "torch" if name in torch else "triton" for name in ops
    }
