"""The config.json of DeepSeek V4, Flash and Pro: what a token and a sequence take, which tensors there are, and what is
refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from appliance.checkpoint import CheckpointError
from appliance.checkpoint.cache_specs import (
    Compressed,
    CompressedKeys,
    block_multiple,
    bytes_per_sequence,
    bytes_per_token,
)
from appliance.checkpoint.config import ModelConfig, read_config
from appliance.checkpoint.drafting import with_head
from appliance.checkpoint.index_keys import with_index_keys
from appliance.checkpoint.layout import expected_tensors, is_ignored, loading_bytes, weight_bytes
from appliance.checkpoint.model_config import CompressedAttention
from appliance.checkpoint.selection import selection_context
from appliance.checkpoint.sharding import obstacle, sharded, shards
from kernels.catalogue import OPS
from kernels.indexer import key_bytes
from kernels.packed_entries import entry_bytes
from kernels.selection import explain
from tests.tiny_deepseek_v4 import CONFIG, shapes

OMIT = object()
QUANTISED = {
    "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}  # fmt: skip
BOTH: dict[str, Any] = {
    "vocab_size": 129280, "head_dim": 512, "qk_rope_head_dim": 64, "o_lora_rank": 1024, "num_experts_per_tok": 6,
    "num_hash_layers": 3, "swiglu_limit": 10.0, "index_n_heads": 64, "index_head_dim": 128, "expert_dtype": "fp4",
    "quantization_config": QUANTISED, "torch_dtype": "bfloat16",
}  # fmt: skip
FLASH = BOTH | {
    "num_hidden_layers": 43, "hidden_size": 4096, "num_attention_heads": 64, "q_lora_rank": 1024, "o_groups": 8,
    "n_routed_experts": 256, "moe_intermediate_size": 2048, "index_topk": 512,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
}  # fmt: skip
PRO = BOTH | {
    "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "q_lora_rank": 1536, "o_groups": 16,
    "n_routed_experts": 384, "moe_intermediate_size": 3072, "index_topk": 1024, "routed_scaling_factor": 2.5,
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
}  # fmt: skip


def config_of(folder: Path, **changes: Any) -> ModelConfig:
    folder.mkdir(parents=True, exist_ok=True)
    given = {key: value for key, value in (CONFIG | changes).items() if value is not OMIT}
    (folder / "config.json").write_text(json.dumps(given))
    return read_config(folder)


def growing(config: ModelConfig) -> float:
    """Bytes of a token, of entries alone: pages are padded."""
    total = 0.0
    for spec in config.cache_specs:
        if isinstance(spec, Compressed):
            total += entry_bytes(spec.dim, spec.rope_dim) / spec.ratio
        elif isinstance(spec, CompressedKeys):
            total += key_bytes(spec.head_dim, spec.mxfp4) / spec.ratio
    return total


@pytest.mark.parametrize(
    ("published", "keys", "of_entries", "of_pages", "megabytes", "kinds"),
    [
        (FLASH, "auto", 3514, 3585, 15.4, (2, 21, 20)), (FLASH, "fp8", 3850, 3915, 15.4, (2, 21, 20)),
        (PRO, "mxfp4", 5031, 5137, 23.3, (0, 30, 31)), (PRO, "fp8", 5511, 5610, 23.3, (0, 30, 31)),
    ],
)  # fmt: skip
def test_what_tokens_and_sequences_take(
    tmp_path: Path,
    published: dict[str, Any],
    keys: str,
    of_entries: int,
    of_pages: int,
    megabytes: float,
    kinds: tuple[int, ...],
) -> None:
    config = with_index_keys(config_of(tmp_path / "m", **published), keys)
    ratios = [layer.mixer.ratio for layer in config.layers if isinstance(layer.mixer, CompressedAttention)]
    assert tuple(map(ratios.count, (0, 4, 128))) == kinds
    assert round(growing(config)) == of_entries
    assert bytes_per_token(config.cache_specs, 2, 256) == of_pages
    assert bytes_per_sequence(config.cache_specs, 2) / 1e6 == pytest.approx(megabytes, abs=0.06)
    assert (config.block_multiple, config.context_length) == (128, 1_048_576)


def test_pages_of_a_block(tmp_path: Path) -> None:
    """64 and 2 entries, and 64 keys, of 256 tokens; in float32 as they are."""
    config = config_of(tmp_path / "m", **FLASH)
    _, entries, keys = config.layers[2].caches
    _, few = config.layers[3].caches
    assert isinstance(entries, Compressed)
    assert isinstance(keys, CompressedKeys)
    assert isinstance(few, Compressed)
    assert [spec.block_bytes(256, 2) for spec in (entries, few, keys)] == [37_440, 1_728, 4_608]
    assert structs.replace(keys, mxfp4=False).block_bytes(256, 2) == 8_640
    assert [spec.block_bytes(256, 4) for spec in (entries, few, keys)] == [64 * 2048, 2 * 2048, 64 * 512]
    assert block_multiple(config.layers[2].caches) == 4


def test_angles_by_kind_of_layer(tmp_path: Path) -> None:
    config = config_of(tmp_path / "m", **FLASH)
    mixers = [layer.mixer for layer in config.layers if isinstance(layer.mixer, CompressedAttention)]
    assert (mixers[0].rope_theta, mixers[0].rope_scaling) == (10_000.0, None)
    for mixer in mixers[2:4]:
        assert mixer.rope_theta == 160_000.0
        assert mixer.rope_scaling is not None
        assert (mixer.rope_scaling["factor"], mixer.rope_scaling["attention_factor"]) == (16.0, 1.0)


def test_tensors_have_the_published_names(tmp_path: Path) -> None:
    config = config_of(tmp_path / "m")
    found = {name: tensor.shape for name, tensor in expected_tensors(config).items()}
    published = dict(shapes(CONFIG))
    drafts = {name for name in published if is_ignored(config, name)}
    assert drafts == {name for name in published if name.startswith("mtp.0.")}
    assert found == {name: shape for name, shape in published.items() if name not in drafts}
    assert {name: tensor.shape for name, tensor in expected_tensors(with_head(config)).items()} == published


@pytest.mark.parametrize("experts", ["fp4", "fp8"])
def test_formats_of_a_quantised_checkpoint(tmp_path: Path, experts: str) -> None:
    tensors = expected_tensors(config_of(tmp_path / "m", **FLASH | {"expert_dtype": experts}))
    at = "layers.3."
    linear = tensors[f"{at}attn.wo_a.weight"], tensors[f"{at}attn.wo_a.scale"]
    assert [(tensor.shape, tensor.dtype) for tensor in linear] == [
        ((8192, 4096), "float8_e4m3fn"), ((64, 32), "float32"),
    ]  # fmt: skip
    expert = tensors[f"{at}ffn.experts.7.w2.weight"], tensors[f"{at}ffn.experts.7.w2.scale"]
    assert [(tensor.shape, tensor.dtype) for tensor in expert] == (
        [((4096, 1024), "mxfp4"), ((4096, 64), "float8_e8m0fnu")]
        if experts == "fp4"
        else [((4096, 2048), "float8_e4m3fn"), ((32, 16), "float32")]
    )
    assert tensors[f"{at}ffn.shared_experts.w2.weight"].dtype == "float8_e4m3fn"
    whole = ("attn.compressor.ape", "hc_attn_fn", "attn.attn_sink")
    assert {tensors[at + name].dtype for name in whole} == {"float32"}
    of_model = ("attn.compressor.wkv.weight", "ffn.gate.weight", "attn_norm.weight")
    assert {tensors[at + name].dtype for name in of_model} == {""}
    assert not any(name.endswith("weight_scale_inv") for name in tensors)


def test_weights_are_counted_as_they_are_kept(tmp_path: Path) -> None:
    """Linear layers stay in FP8 on GPUs, and experts in MXFP4; with a byte of scale for 32 numbers."""
    config = config_of(tmp_path / "m", **FLASH)
    experts = 43 * 256 * 3 * 4096 * 2048
    kept = weight_bytes(config, 2, keep_fp8=True)
    assert experts * 17 / 32 < kept < experts * 17 / 32 + 15e9
    assert weight_bytes(config, 2, keep_fp8=False) > kept
    assert loading_bytes(config) == experts // 32
    in_fp8 = weight_bytes(config_of(tmp_path / "n", **FLASH | {"expert_dtype": "fp8"}), 2, keep_fp8=True)
    scales = experts // 128**2 * 4
    assert in_fp8 - kept == experts + scales - experts * 17 // 32


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"compress_ratios": [0, 4, 128, 4]}, "compress_ratios"),
        ({"compress_ratios": [0, 4, 128, 4, 0, 0, 0]}, "compress_ratios"),
        ({"compress_ratios": [0, 4, 64, 4, 0]}, "compress_ratios"),
        ({"compress_ratios": OMIT}, "compress_ratios"),
        ({"compress_ratios": "0,4"}, "compress_ratios"),
        ({"num_key_value_heads": 4}, "num_key_value_heads"),
        ({"o_groups": 3}, "o_groups"),
        ({"qk_rope_head_dim": 64}, "qk_rope_head_dim"),
        ({"index_head_dim": 8}, "index_head_dim"),
        ({"hc_mult": 0}, "hc_mult"),
        ({"expert_dtype": "fp4"}, "expert_dtype"),
        ({"expert_dtype": "int4", "quantization_config": QUANTISED}, "expert_dtype"),
        ({"expert_dtype": "fp4", "quantization_config": QUANTISED | {"expert_dtype": "fp8"}}, "expert_dtype"),
    ],
)
def test_nonsense_is_named(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_of(tmp_path / "m", **changes)
    assert (caught.value.id, caught.value.field) == ("config-invalid", field)
    assert caught.value.fix.text


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"scoring_func": "sigmoid"}, "scoring_func"), ({"tie_word_embeddings": True}, "tie_word_embeddings"),
     ({"index_head_dim": 48}, "index_head_dim")],
)  # fmt: skip
def test_what_only_others_run(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_of(tmp_path / "m", **changes)
    assert (caught.value.id, caught.value.field) == ("architecture-unsupported", field)


@pytest.mark.parametrize(
    ("ranks", "why"), [(3, "attention heads"), (16, "groups of heads"), (8, None), (4, None), (2, None)]
)
def test_ranks_that_divide(tmp_path: Path, ranks: int, why: str | None) -> None:
    """Of Flash, 64 heads in 8 groups."""
    found = obstacle(config_of(tmp_path / "m", **FLASH), ranks)
    assert found is None if why is None else why in (found or "")


def test_a_rank_takes_its_part_of_packed_experts(tmp_path: Path) -> None:
    """Two numbers a byte and 32 numbers a scale where columns are cut; rows are rows."""
    config = config_of(tmp_path / "m", **FLASH)
    local, cut = expected_tensors(sharded(config, 4)), shards(config, 1, 4)
    for name, ranges in (
        ("layers.5.ffn.experts.0.w2.weight", (range(256, 512),)),
        ("layers.5.ffn.experts.0.w2.scale", (range(16, 32),)),
        ("layers.5.ffn.experts.0.w1.weight", (range(512, 1024),)),
        ("layers.5.ffn.experts.0.w1.scale", (range(512, 1024),)),
        ("layers.5.attn.wo_a.weight", (range(2048, 4096),)),
        ("layers.5.attn.wo_a.scale", (range(16, 32),)),
        ("layers.5.attn.attn_sink", (range(16, 32),)),
    ):
        assert cut[name].ranges == ranges
        assert sum(map(len, ranges)) == local[name].shape[cut[name].dim]


@pytest.mark.parametrize("capability", [None, (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)])
def test_every_device_has_a_backend_for_every_op(tmp_path: Path, capability: tuple[int, int] | None) -> None:
    config = config_of(tmp_path / "m", **FLASH)
    context = selection_context(
        config, device="cuda" if capability else "cpu", capability=capability,
        dtype="bfloat16" if capability else "float32", kv_cache_dtype="", cuda_graphs=False,
        libraries={"triton": "3.7"},
    )  # fmt: skip
    of_model = {
        "compressed_attention": True, "window": 128, "least_ratio": 128, "index_ratio": 4, "index_heads": 64,
        "index_head_dim": 128, "index_top_k": 512, "residual_streams": 4, "hash_routing": True,
        "expert_scoring": "sqrtsoftplus", "latent_attention": False, "sparse_attention": False,
    }  # fmt: skip
    assert {name: getattr(context, name) for name in of_model} == of_model
    found = {each.op.name: each.chosen for each in explain(OPS, context)}
    assert all(found.values())
    assert {"mhc_pre", "compressor", "compressed_attention", "indexer", "index_query"} <= found.keys()
    assert found.keys().isdisjoint({"paged_attention", "rotary_cache", "mla_attention", "sparse_mla", "index_cache"})
