"""config.json: both spellings read alike, what a family implies is filled in, and nonsense is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.checkpoint import CheckpointError
from appliance.checkpoint.cache_specs import SlidingWindow
from appliance.checkpoint.config import SUPPORTED_ARCHITECTURES, ModelConfig, read_config
from appliance.checkpoint.layout import expected_tensors, weight_bytes
from appliance.checkpoint.model_config import Attention
from appliance.checkpoint.safetensors import read_index
from tests.tiny import BASE, FAMILIES, write_checkpoint

OMIT = object()


def write(folder: Path, family: str = "llama", **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    merged = BASE | FAMILIES[family] | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in merged.items() if v is not OMIT}))
    return folder


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in expected_tensors(config).items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}])
def test_the_layout_is_what_the_family_has(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    """Names and shapes as in a checkpoint that transformers' layout gives; parameters counted without listing."""
    if family != "llama" and "mlp_bias" in options:
        pytest.skip("only Llama has biases that can be chosen")
    folder = write_checkpoint(tmp_path / "m", family, **options)
    config = read_config(folder)
    index = read_index(folder)
    assert {name: entry.shape for name, entry in index.tensors.items()} == shapes(config)
    assert weight_bytes(config, 4, keep_fp8=True) == index.total_bytes
    assert config.architecture in SUPPORTED_ARCHITECTURES


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layout_is_what_transformers_makes(tmp_path: Path, family: str) -> None:
    """The same, against what transformers itself saves, with biases where the family can have them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = write(tmp_path / "m", family, attention_bias=True, mlp_bias=family == "llama")
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(tmp_path / "theirs")
    theirs = {name: entry.shape for name, entry in read_index(tmp_path / "theirs").tensors.items()}
    assert shapes(read_config(folder)) == theirs
    assert shapes(read_config(tmp_path / "theirs")) == theirs


@pytest.mark.parametrize(
    ("four", "five"),
    [
        ({"rope_theta": 5e5}, {"rope_theta": OMIT, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        (
            {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_theta": OMIT, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}},
        ),
        ({"torch_dtype": "bfloat16"}, {"torch_dtype": OMIT, "dtype": "bfloat16"}),
        ({"rope_scaling": None}, {"rope_scaling": {"rope_type": "default"}}),
    ],
)
def test_both_spellings_are_read_alike(tmp_path: Path, four: dict[str, Any], five: dict[str, Any]) -> None:
    """transformers 4 and 5 write the same things under other names."""
    assert read_config(write(tmp_path / "a", **four)) == read_config(write(tmp_path / "b", **five))


def test_what_is_absent_follows_from_the_rest(tmp_path: Path) -> None:
    """Heads of keys as many as of queries; head_dim from the hidden size; Qwen3's head_dim is 128."""
    config = read_config(write(tmp_path / "a", num_key_value_heads=OMIT, rms_norm_eps=OMIT, hidden_act=OMIT))
    assert (config.num_key_value_heads, config.head_dim, config.rms_norm_eps) == (4, 16, 1e-6)
    assert read_config(write(tmp_path / "b", "qwen3", head_dim=OMIT)).head_dim == 128


def test_what_a_family_implies(tmp_path: Path) -> None:
    """Qwen2 has biases on query, key and value though no config says so; Qwen3 norms its heads."""
    qwen2 = read_config(write(tmp_path / "a", "qwen2"))
    assert (qwen2.attention_bias, qwen2.attention_output_bias, qwen2.qk_norm) == (True, False, "")
    qwen3 = read_config(write(tmp_path / "b", "qwen3"))
    assert (qwen3.attention_bias, qwen3.attention_output_bias, qwen3.qk_norm) == (False, False, "head")
    llama = read_config(write(tmp_path / "c", attention_bias=True))
    assert (llama.attention_bias, llama.attention_output_bias) == (True, True)


@pytest.mark.parametrize(
    ("family", "changes", "window", "sliding_layers"),
    [
        ("llama", {"sliding_window": 64}, None, 0),
        ("mistral", {"sliding_window": None}, None, 0),
        ("mistral", {"sliding_window": 64}, 64, 2),
        ("mistral", {"sliding_window": OMIT}, 4096, 2),
        ("qwen2", {"sliding_window": 64}, None, 0),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": False, "max_window_layers": 0}, None, 0),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}, 64, 1),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 9}, None, 0),
        ("qwen3", {"sliding_window": 8, "use_sliding_window": True,
                   "layer_types": ["sliding_attention", "full_attention"]}, 8, 1),
    ],
)  # fmt: skip
def test_sliding_windows(
    tmp_path: Path, family: str, changes: dict[str, Any], window: int | None, sliding_layers: int
) -> None:
    """Only where the family has one, and only where it is switched on."""
    config = read_config(write(tmp_path / "m", family, **changes))
    windows = [layer.mixer.window for layer in config.layers if isinstance(layer.mixer, Attention)]
    assert len(windows) == 2
    assert [each for each in windows if each is not None] == [window] * sliding_layers
    of_specs = [spec.window if isinstance(spec, SlidingWindow) else None for spec in config.cache_specs]
    assert of_specs == windows


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        (None, 512),
        ({"rope_type": "linear", "factor": 4}, 2048),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "yarn", "factor": 2.0}, 1024),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 128}, 512,
        ),
        ({"rope_type": "longrope", "short_factor": [1.0]}, 512),
    ],
)  # fmt: skip
def test_the_context_that_a_model_was_made_for(tmp_path: Path, scaling: dict[str, Any] | None, length: int) -> None:
    """RoPE scaling lengthens it, except where max_position_embeddings counts it already."""
    config = read_config(write(tmp_path / "m", rope_scaling=scaling))
    assert config.context_length == length
    assert (config.rope_scaling or {}).get("rope_type") == (scaling or {}).get("rope_type")


def test_end_tokens_are_gathered_from_both_files(tmp_path: Path) -> None:
    """A chat model ends its turn with a token that often only generation_config.json names."""
    folder = write(tmp_path / "m", eos_token_id=2)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2, 7]}))
    assert read_config(folder).eos_token_ids == (2, 5, 7)
    assert read_config(write(tmp_path / "n", eos_token_id=None, bos_token_id=-1)).eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"architectures": OMIT}, "architectures"),
        ({"architectures": []}, "architectures"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"architectures": [None]}, "architectures"),
        ({"architectures": ["MambaForCausalLM"]}, "architectures"),
        ({"vocab_size": OMIT}, "vocab_size"),
        ({"vocab_size": "512"}, "vocab_size"),
        ({"vocab_size": 1 << 60}, "vocab_size"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": 64.5}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 63, "num_key_value_heads": 4}, "hidden_size"),
        ({"hidden_size": 62, "head_dim": None}, "hidden_size"),
        ({"num_hidden_layers": [2]}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"partial_rotary_factor": 0.07}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.07}},
         "rope_parameters.partial_rotary_factor"),
        ({"hidden_size": 60, "head_dim": None}, "hidden_size"),
        ({"head_dim": float("nan")}, "head_dim"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"max_position_embeddings": {}}, "max_position_embeddings"),
        ({"intermediate_size": 1e400}, "intermediate_size"),
        ({"hidden_act": 3}, "hidden_act"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": 512}, "eos_token_id"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id"),
        ({"bos_token_id": 1.0}, "bos_token_id"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": 7}}, "rope_scaling.type"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "rope_scaling.original_max_position_embeddings"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 64,
                           "low_freq_factor": 4, "high_freq_factor": 1}}, "rope_scaling.high_freq_factor"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_parameters.rope_theta"),
        ({"quantization_config": []}, "quantization_config"),
    ],
)  # fmt: skip
def test_nonsense_is_named(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    """File, field, value and remedy; never a traceback."""
    with pytest.raises(CheckpointError) as caught:
        read_config(write(tmp_path / "m", **changes))
    error = caught.value
    assert error.field == field
    assert error.file == tmp_path / "m" / "config.json"
    assert error.fix.text
    assert error.id in ("config-invalid", "architecture-unsupported")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "line 1, column 1"),
        (b'{"a": 1,\n "b" 2}', "line 2, column 6"),
        (b"[]", "list"),
        (b"\xff\xfe", "not UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer"),
        (b"[" * 100_000, "nested"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "too long"),
    ],
)
def test_a_config_that_is_not_json(tmp_path: Path, content: bytes, said: str) -> None:
    """The message says where."""
    folder = write(tmp_path / "m")
    (folder / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=said) as caught:
        read_config(folder)
    assert caught.value.id == "config-unreadable"


def test_an_infinity_that_nobody_reads_does_no_harm(tmp_path: Path) -> None:
    """Some published configs hold one, in fields of other architectures."""
    assert read_config(write(tmp_path / "m", time_step_limit=[0.0, float("inf")])).vocab_size == 512


def test_a_folder_of_another_format_is_recognised(tmp_path: Path) -> None:
    """A GGUF file, or a hub cache: the way out is named."""
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "model.Q4.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="GGUF"):
        read_config(tmp_path / "g")
    write(tmp_path / "models--Qwen--Qwen3" / "snapshots" / "abc")
    with pytest.raises(CheckpointError, match="snapshots/abc"):
        read_config(tmp_path / "models--Qwen--Qwen3")


def test_an_unsupported_architecture_names_those_that_are(tmp_path: Path) -> None:
    """And offers the other engine."""
    with pytest.raises(CheckpointError) as caught:
        read_config(write(tmp_path / "m", architectures=["GptOssForCausalLM"], vocab_size=OMIT))
    assert all(name in caught.value.evidence[0] for name in SUPPORTED_ARCHITECTURES)
    assert "engine: vllm" in caught.value.fix.text


def test_every_architecture_is_documented() -> None:
    """A family is a row in the table for people, too."""
    document = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    assert all(f"| `{name}` |" in document for name in SUPPORTED_ARCHITECTURES)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=6)
    | st.sampled_from([0, 1, 2, 4, 64, "yarn", "llama3", "linear", "dynamic"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "rope_type", "factor", "rope_theta", "x"]), inner, max_size=4),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    changes=st.dictionaries(
        st.sampled_from([*BASE, "head_dim", "rope_scaling", "rope_parameters", "sliding_window", "use_sliding_window",
                         "layer_types", "max_window_layers", "attention_bias", "quantization_config", "dtype"]),
        VALUES, min_size=1, max_size=4,
    ),
)  # fmt: skip
def test_any_config_is_read_or_refused(tmp_path_factory: Any, family: str, changes: dict[str, Any]) -> None:
    """Any JSON under any key: a ModelConfig that can be computed with, or a CheckpointError."""
    folder = write(tmp_path_factory.getbasetemp() / "any-config", family, **changes)
    try:
        config = read_config(folder)
    except CheckpointError as error:
        assert msgspec.json.encode(error.finding())  # noqa: PT017
        return
    assert config.context_length >= config.max_position_embeddings
    assert weight_bytes(config, 2, keep_fp8=True) > 0
    assert config.num_attention_heads % config.num_key_value_heads == 0
