"""A value that a message quotes is found in the model's files, with its file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.model_values import damaged_file_in, damaged_weights_in, model_value_in
from appliance.protocol import Diagnosis

FILES: dict[str, Any] = {
    "config.json": {
        "architectures": ["OddForCausalLM"],
        "model_type": "odd",
        "tie_word_embeddings": False,
        "hidden_act": "linear",
        "hidden_size": 4096,
        "rope_scaling": {"type": "longrope2", "factor": 4.0},
        "quantization_config": {"quant_method": "fp7"},
    },
    "generation_config.json": {"cache_implementation": "quantum"},
    "tokenizer_config.json": {
        "tokenizer_class": "PurpleTokenizer",
        "added_tokens_decoder": {"1": {"content": "<|purple|>"}},
    },
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("Unknown RoPE scaling type longrope2", ("config.json", "rope_scaling.type")),
        ("Unknown quantization method: fp7. Must be one of ['awq', 'fp8']", ("config.json",
                                                                              "quantization_config.quant_method")),
        ("'quantum' is no cache", ("generation_config.json", "cache_implementation")),
        ("Tokenizer class PurpleTokenizer does not exist", ("tokenizer_config.json", "tokenizer_class")),
        ("hidden_size (4096) is not divisible by 15", ("config.json", "hidden_size")),
        ("4096 rows do not fit", None),  # a number alone may be any
        ("'<|purple|>' is a token of a client", None),
        ("the model is odder than expected", None),
        ("The linear layer failed", None),
        ("the odd one, of any type", None),
        ("model type odd is unknown", ("config.json", "model_type")),
        ("OddForCausalLM is not supported (supported: A, B)", ("config.json", "architectures")),
        ("tie_word_embeddings=False is not supported", ("config.json", "tie_word_embeddings")),
        ("tie_word_embeddings must not be false", ("config.json", "tie_word_embeddings")),
        ("tie_word_embeddings must not be true", None),
    ],
)  # fmt: skip
def test_a_value_is_found_with_its_file_and_key(model: Path, message: str, place: tuple[str, str] | None) -> None:
    found = model_value_in(message, model)
    assert (found and (found.file, found.key)) == place


@pytest.mark.parametrize("content", ["", "[1]", '{"a": ', "\x00\xff", '{"a": ' * 5000])
def test_a_damaged_file_is_passed_over(model: Path, content: str) -> None:
    (model / "config.json").write_text(content)
    found = model_value_in("'quantum'", model)
    assert found is not None
    assert found.file == "generation_config.json"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_which_file_cannot_be_parsed(model: Path, name: str) -> None:
    """The parser's words name a line, and not the file."""
    (model / name).write_text('{"vocab": {"odd": 1, ')
    lines = (
        "Traceback (most recent call last):",
        '  File "/opt/vllm/tokenizers/registry.py", line 9, in load_tokenizer',
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 22 (char 21)",
    )
    found = diagnose(number_lines("\n".join(lines)), profile={"engine": "vllm"}, model=model, failed=True)
    assert found.family == "model-config"
    assert f"{name} is not JSON" in found.summary
    assert found.fix is not None


def test_a_link_to_itself_is_damaged_and_what_is_not_there_is_not(model: Path) -> None:
    assert damaged_file_in(model) is None
    (model / "processor_config.json").symlink_to("processor_config.json")
    error = damaged_file_in(model)
    assert error is not None
    assert error.file == model / "processor_config.json"


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "0 bytes"), (b"version https://git-lfs", "Git LFS pointer"), (None, "not a file")]
)
def test_which_weights_are_damaged(model: Path, content: bytes | None, says: str) -> None:
    """The loader's words name neither the file nor what is wrong with it."""
    assert damaged_weights_in(model) is None  # other formats are not read
    weights = model / "model.safetensors"
    if content is None:
        weights.mkdir()
    else:
        weights.write_bytes(content)
    ended = "safetensors_rust.SafetensorError: Error while deserializing header: header too small"
    found = diagnose(number_lines(ended), profile={"engine": "vllm"}, model=model, failed=True)
    assert found.family == "weights"
    assert "model.safetensors" in found.summary
    assert says in found.summary


def told(message: str, model: Path, profile: dict[str, Any] | None = None) -> Diagnosis:
    text = f'Traceback (most recent call last):\n  File "/usr/bin/vllm", line 8, in <module>\nOddError: {message}\n'
    return diagnose(number_lines(text), exit_status=1, model=model, profile=profile)


def test_the_summary_names_file_and_key(model: Path) -> None:
    found = told("longrope2 went purple: 'longrope2'", model)
    assert found.family == "model-config"
    assert all(word in found.summary for word in ("config.json", "rope_scaling.type", "longrope2"))
    assert found.fix is not None
    assert "config.json" in found.fix.text


def test_a_setting_of_the_profile_counts_before_the_model(model: Path) -> None:
    """What a person can change is the better answer."""
    profile = {"schema": 1, "name": "m", "model": {"path": "bundled"}, "kv-cache-dtype": "fp7"}
    found = told("'fp7' went purple", model, profile)
    assert "kv-cache-dtype" in found.summary
    assert "config.json" not in found.summary


def test_without_the_models_folder_nothing_is_looked_up(model: Path) -> None:
    assert "config.json" not in told("'longrope2'", model / "gone").summary
