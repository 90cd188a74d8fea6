"""Models of gated delta layers beside attention: what their configs mean, which parts of them the engine leaves out,
and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.checkpoint import CheckpointError
from appliance.checkpoint.cache_specs import FullAttention, State, StatePart, bytes_per_sequence
from appliance.checkpoint.config import read_config
from appliance.checkpoint.drafting import with_drafts, with_head
from appliance.checkpoint.fused_experts import one_by_one
from appliance.checkpoint.layout import expected_tensors, is_ignored, weight_bytes
from appliance.checkpoint.model_config import Attention, GatedDelta, ModelConfig
from appliance.checkpoint.safetensors import TensorIndex, read_index
from tests.tiny import BASE, FAMILIES, FP8, aligned, block_fp8, write_checkpoint
from tests.tiny_forms import as_seeing, fuse_experts
from tests.tiny_shapes import tensor_shapes

OMIT = object()
HYBRIDS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
# As published, but for what does not change the weights.
NEXT_80B = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48, "head_dim": 256,
    "num_attention_heads": 16, "num_key_value_heads": 2, "full_attention_interval": 4, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_experts": 512,
    "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "rope_theta": 1e7, "max_position_embeddings": 262144,
}  # fmt: skip


def write(folder: Path, family: str, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    merged = BASE | FAMILIES[family] | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in merged.items() if v is not OMIT}))
    return folder


def kinds(config: ModelConfig) -> str:
    return "".join("d" if isinstance(layer.mixer, GatedDelta) else "a" for layer in config.layers)


def test_what_a_published_config_means(tmp_path: Path) -> None:
    """Qwen3-Next-80B-A3B: 48 layers, of which 12 attend; what a token and a sequence keep; and its parameters."""
    config = read_config(write(tmp_path / "m", "qwen3_next", **NEXT_80B))
    assert kinds(config) == "ddda" * 12
    mixer = GatedDelta(num_key_heads=16, num_value_heads=32, key_dim=128, value_dim=128, conv_width=4, packed=True)
    assert config.layers[0].mixer == mixer
    assert config.layers[0].cache == State(parts=(StatePart((32, 128, 128), "float32"), StatePart((8192, 3))))
    assert config.layers[3].mixer == Attention(gated=True)
    assert config.layers[3].cache == FullAttention(num_kv_heads=2, head_dim=256)
    assert sum(spec.bytes_per_token(2) for spec in config.cache_specs if isinstance(spec, FullAttention)) == 24_576
    assert sum(spec.bytes_per_sequence(2) for spec in config.cache_specs if isinstance(spec, State)) == 77_266_944
    assert (config.rotary_dim, config.norm_offset, config.prefix) == (64, 1.0, "model.")
    assert weight_bytes(config, 2, keep_fp8=True) // 2 == pytest.approx(79.7e9, rel=0.002)


@pytest.mark.parametrize("value", [OMIT, None], ids=["absent", "null"])
def test_what_is_absent_follows_from_the_family(tmp_path: Path, value: Any) -> None:
    """As transformers fills it in."""
    absent = [name for name in FAMILIES["qwen3_next"] if name.startswith("linear_")] + ["full_attention_interval"]
    absent += ["partial_rotary_factor", "norm_topk_prob", "head_dim", "decoder_sparse_step"]
    config = read_config(write(tmp_path / "m", "qwen3_next", num_hidden_layers=4, **dict.fromkeys(absent, value)))
    assert kinds(config) == "ddda"
    mixer = config.layers[0].mixer
    assert isinstance(mixer, GatedDelta)
    assert (mixer.num_key_heads, mixer.num_value_heads, mixer.key_dim, mixer.value_dim) == (16, 32, 128, 128)
    assert (mixer.conv_width, config.head_dim, config.rotary_dim) == (4, 256, 64)
    assert config.experts is not None
    assert config.experts.routing.renormalise


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_hidden_layers": 5}, "dadad"),
        ({"num_hidden_layers": 3, "full_attention_interval": 3}, "dda"),
        ({"num_hidden_layers": 3, "full_attention_interval": 1}, "aaa"),
        # The list goes before the interval, as in transformers.
        ({"num_hidden_layers": 3, "layer_types": ["full_attention", "linear_attention", "linear_attention"]}, "add"),
    ],
)
def test_which_layers_attend(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    assert kinds(read_config(write(tmp_path / "m", "qwen3_5", **changes))) == expected


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_the_language_model_of_one_that_sees(tmp_path: Path, family: str) -> None:
    """It reads as it would by itself, but for the names of its tensors; what it shares with the whole, such as the
    format of its weights, stands outside."""
    alone = read_config(write(tmp_path / "alone", family))
    config = read_config(as_seeing(write(tmp_path / "seeing", family)))
    assert config.prefix == "model.language_model."
    assert {name.replace("model.language_model.", "model.") for name in expected_tensors(config)} == set(
        expected_tensors(alone)
    )
    assert (config.layers, config.experts, config.dtype) == (alone.layers, alone.experts, alone.dtype)
    skipped = ["lm_head", "in_proj_a", "in_proj_b", "model.visual", "model.language_model.layers.1.self_attn"]
    folder = write(
        tmp_path / "fp8", family, **aligned(family), tie_word_embeddings=OMIT, torch_dtype=OMIT,
    )  # fmt: skip
    outside = {
        "quantization_config": FP8 | {"modules_to_not_convert": skipped}, "tie_word_embeddings": True,
        "dtype": "float16",
    }  # fmt: skip
    config = read_config(as_seeing(folder, **outside))
    assert (config.tie_word_embeddings, config.dtype) == (True, "float16")
    assert config.fp8 is not None
    assert config.fp8.covers("model.language_model.layers.0.linear_attn.in_proj_qkv")
    assert not config.fp8.covers("model.language_model.layers.1.self_attn.q_proj")


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_head_has_the_published_names(tmp_path: Path, family: str) -> None:
    """Beside the language model of one that sees, whose prefix it has not; and none where the config says so."""
    published = {name for name, _ in tensor_shapes(BASE | FAMILIES[family] | {"mtp_num_hidden_layers": 1})}
    alone = with_head(read_config(write(tmp_path / "alone", family)))
    assert set(expected_tensors(alone)) == published
    assert alone.num_hidden_layers == 3
    assert not is_ignored(alone, "mtp.fc.weight")
    if family != "qwen3_next":
        seeing = with_head(read_config(as_seeing(write(tmp_path / "seeing", family))))
        assert {name for name in expected_tensors(seeing) if "mtp." in name} == {
            name for name in published if name.startswith("mtp.")
        }
    for changes in ({"mtp_num_hidden_layers": 0}, {"mtp_use_dedicated_embeddings": True}):
        assert read_config(write(tmp_path / "none", family, **changes)).head is None


def test_drafts_have_room_in_a_state(tmp_path: Path) -> None:
    """Qwen3-Next-80B: what the state of each layer takes of drafts, of one chain and of the next."""
    config = read_config(write(tmp_path / "m", "qwen3_next", **NEXT_80B))
    one, four = with_drafts(config, 1), with_drafts(config, 4)
    plain, *rest = (bytes_per_sequence(each.cache_specs, 2) for each in (config, one, four))
    room = [36 * places * 2 * (8192 + 2048 + 4096 + 64) for places in (3, 9)]
    assert [size - plain for size in rest] == pytest.approx(room, rel=0.002)
    assert with_drafts(config, 0) == config


def test_parts_that_are_not_run_are_known(tmp_path: Path) -> None:
    """What sees, and what drafts; nothing else is passed over."""
    seeing = read_config(as_seeing(write(tmp_path / "a", "qwen3_5")))
    assert is_ignored(seeing, "model.visual.blocks.0.attn.qkv.weight")
    assert is_ignored(seeing, "mtp.layers.0.self_attn.q_proj.weight")
    assert not is_ignored(seeing, "model.language_model.layers.9.mlp.up_proj.weight")
    llama = read_config(write(tmp_path / "b", "llama"))
    assert not is_ignored(llama, "mtp.fc.weight")


@pytest.mark.parametrize(
    ("family", "changes", "field"),
    [
        ("qwen3_5", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen3_5", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("qwen3_5", {"layer_types": ["full_attention", ["linear_attention"]]}, "layer_types"),
        ("qwen3_5", {"layer_types": "full_attention"}, "layer_types"),
        ("qwen3_next", {"full_attention_interval": 0}, "full_attention_interval"),
        ("qwen3_next", {"full_attention_interval": 3}, "full_attention_interval"),
        ("qwen3_next", {"full_attention_interval": OMIT, "num_hidden_layers": 3}, "full_attention_interval"),
        ("qwen3_5", {"layer_types": ["linear_attention"] * 2}, "layer_types"),
        ("qwen3_next", {"linear_num_key_heads": 3}, "linear_num_key_heads"),
        ("qwen3_next", {"linear_num_key_heads": 8}, "linear_num_key_heads"),
        ("qwen3_next", {"linear_num_value_heads": 0}, "linear_num_value_heads"),
        ("qwen3_next", {"linear_key_head_dim": "16"}, "linear_key_head_dim"),
        ("qwen3_next", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ("qwen3_next", {"shared_expert_intermediate_size": OMIT}, "shared_expert_intermediate_size"),
        ("qwen3_next", {"use_sliding_window": 1}, "use_sliding_window"),
        ("qwen3_5", {"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype"),
        ("qwen3_5", {"attn_output_gate": "no"}, "attn_output_gate"),
        ("qwen3_5", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("qwen3_5", {"architectures": ["Qwen3_5ForConditionalGeneration"]}, "text_config"),
        ("qwen3_5", {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": 3}, "text_config"),
    ],
)  # fmt: skip
def test_nonsense_about_layers_is_named(tmp_path: Path, family: str, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_config(write(tmp_path / "m", family, **changes))
    assert (caught.value.id, caught.value.field) == ("config-invalid", field)
    assert caught.value.fix.text


@pytest.mark.parametrize("changes", [{"use_sliding_window": True}, {"attn_output_gate": False}])
@pytest.mark.parametrize("seeing", [False, True])
def test_a_choice_that_the_engine_lacks_is_no_fault_of_the_file(
    tmp_path: Path, changes: dict[str, Any], seeing: bool
) -> None:
    [(field, value)] = changes.items()
    folder = write(tmp_path / "m", "qwen3_5", **changes)
    with pytest.raises(CheckpointError) as caught:
        read_config(as_seeing(folder) if seeing else folder)
    assert (caught.value.id, caught.value.value) == ("architecture-unsupported", value)
    assert caught.value.field == ("text_config." if seeing else "") + field


def test_a_key_of_the_language_model_is_named_where_it_stands(tmp_path: Path) -> None:
    folder = as_seeing(write(tmp_path / "m", "qwen3_5", linear_num_key_heads=3))
    with pytest.raises(CheckpointError) as caught:
        read_config(folder)
    assert caught.value.field == "text_config.linear_num_key_heads"


@pytest.mark.parametrize(
    ("family", "changes", "module"),
    [
        ("qwen3_next", {"head_dim": 64}, "self_attn.q_proj"),
        ("qwen3_next", {"linear_key_head_dim": 64}, "linear_attn.in_proj_qkvz"),
        ("qwen3_next", {"linear_value_head_dim": 32}, "linear_attn.in_proj_qkvz"),
        ("qwen3_next", {"quantization_config": FP8}, "linear_attn.in_proj_ba"),
        ("qwen3_5", {"quantization_config": FP8}, "linear_attn.in_proj_b"),
        ("qwen3_5", {"linear_key_head_dim": 60}, "linear_attn.in_proj_qkv"),
    ],
)
def test_blocks_that_two_parts_would_share_are_refused(
    tmp_path: Path, family: str, changes: dict[str, Any], module: str
) -> None:
    """Interleaved parts are brought together by whole blocks."""
    config = aligned(family) | {"quantization_config": block_fp8(family)} | changes
    with pytest.raises(CheckpointError) as caught:
        read_config(write(tmp_path / "m", family, **config))
    assert caught.value.id == "quantization-unsupported"
    assert module in str(caught.value)


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
@pytest.mark.parametrize("quantised", [False, True], ids=["full", "fp8"])
def test_fused_experts_are_read_one_by_one(tmp_path: Path, family: str, quantised: bool) -> None:
    """Every expert's tensors, those of a head too, are bytes of the fused ones: the same names, shapes and contents."""
    changes = aligned(family) | {"mtp_num_hidden_layers": 1}
    changes |= {"quantization_config": block_fp8(family)} if quantised else {}
    folder = write_checkpoint(tmp_path / "m", family, **changes)
    config, apart = with_head(read_config(folder)), read_index(folder)
    fused = read_index(fuse_experts(folder))
    assert len(fused.tensors) < len(apart.tensors)
    again = one_by_one(fused, config)
    assert {name: entry.shape for name, entry in again.tensors.items()} == {
        name: entry.shape for name, entry in apart.tensors.items()
    }
    contents = {name: entry.file.read_bytes()[entry.begin : entry.end] for name, entry in again.tensors.items()}
    folder = write_checkpoint(tmp_path / "m", family, **changes)
    assert contents == {
        name: entry.file.read_bytes()[entry.begin : entry.end] for name, entry in read_index(folder).tensors.items()
    }
    assert again.total_bytes == fused.total_bytes


def test_a_fused_tensor_of_another_shape_is_no_expert(tmp_path: Path) -> None:
    """It stays what it is, and preflight misses the experts."""
    folder = write_checkpoint(tmp_path / "m", "qwen3_next")
    config = read_config(write(tmp_path / "n", "qwen3_next", num_experts=4))
    index = read_index(fuse_experts(folder))
    assert one_by_one(index, config).tensors == index.tensors


def test_experts_by_themselves_go_before_fused_ones(tmp_path: Path) -> None:
    """Where a checkpoint has both, a fused tensor stays what it is, and preflight finds that it is not used."""
    folder = write_checkpoint(tmp_path / "m", "qwen3_next")
    config, apart = read_config(folder), read_index(folder)
    fused = read_index(fuse_experts(folder))
    both = TensorIndex(fused.tensors | apart.tensors, fused.files, fused.total_bytes)
    assert one_by_one(both, config).tensors == both.tensors
    down = {name: entry for name, entry in apart.tensors.items() if ".experts.0.down_proj" in name}
    tensors = one_by_one(TensorIndex(fused.tensors | down, fused.files, fused.total_bytes), config).tensors
    left = {name for name in tensors if name.endswith(("experts.down_proj", "experts.gate_up_proj"))}
    assert left == {name for name in fused.tensors if name.endswith("experts.down_proj")}
    assert down.items() <= tensors.items()


VALUES = (
    st.none() | st.booleans() | st.integers(-2, 300) | st.floats() | st.text(max_size=6)
    | st.lists(st.sampled_from(["linear_attention", "full_attention", "", 1, None]), max_size=3)
    | st.sampled_from([0, 1, 2, 4, 8, 128, "float32", "bfloat16", [128, 128], FP8, {}])
)  # fmt: skip
KEYS = [
    *sorted(FAMILIES["qwen3_next"].keys() - {"architectures", "model_type"}), "layer_types", "mamba_ssm_dtype",
    "attn_output_gate", "num_hidden_layers", "text_config", "quantization_config", "rope_parameters",
    "tie_word_embeddings", "dtype",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    family=st.sampled_from(HYBRIDS),
    changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=4),
    seeing=st.booleans(),
)
def test_any_hybrid_config_is_read_or_refused(
    tmp_path_factory: Any, family: str, changes: dict[str, Any], seeing: bool
) -> None:
    """Any JSON under any key: layers that can be listed, or a CheckpointError."""
    folder = write(tmp_path_factory.getbasetemp() / "any-hybrid", family, **changes)
    if seeing and family != "qwen3_next":
        as_seeing(folder)
    try:
        config = read_config(folder)
    except CheckpointError as error:
        assert error.field  # noqa: PT017
        return
    assert len(config.layers) == config.num_hidden_layers
    assert 0 < weight_bytes(config, 2, keep_fp8=True) <= weight_bytes(config, 4, keep_fp8=False)
