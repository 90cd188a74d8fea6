"""What a model's config.json gives otherwise than its weights have it, and files that an editor saved otherwise."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.restoring import recoding_command
from appliance.diagnosis.sizes_in_weights import correcting_command, differences
from appliance.protocol import Diagnosis
from tests.tiny import write_checkpoint

SHAPES = "AssertionError: assert loaded_weight.shape[output_dim] == self.org_vocab_size"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path, dtype="float32")
    return tmp_path


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=2))


def told(error: str, folder: Path, engine: str = "vllm", **profile: Any) -> Diagnosis:
    document = {"schema": 1, "name": "m", "engine": engine, "model": {"path": "m"}, **profile}
    return diagnose(number_lines(error), failed=True, profile=document, model=folder)


def test_a_whole_model_has_no_differences(folder: Path) -> None:
    assert differences(folder) == ()


@pytest.mark.parametrize(
    "key", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_key_value_heads"]
)
def test_the_weights_size_is_the_right_one(key: str, folder: Path) -> None:
    right = json.loads((folder / "config.json").read_text())[key]
    change(folder, **{key: 1})
    assert [(found.key, found.given, found.right) for found in differences(folder)] == [(key, 1, right)]
    fix = told(SHAPES, folder).fix
    assert fix is not None
    subprocess.run(["sh", "-c", fix.command or ""], check=True)
    assert json.loads((folder / "config.json").read_text())[key] == right


def test_a_model_is_not_served_with_fewer_layers_than_it_has(folder: Path) -> None:
    """The weights may be incomplete."""
    change(folder, num_hidden_layers=9)
    assert differences(folder) == ()


def test_of_the_native_engine_preflight_has_told_it(folder: Path) -> None:
    change(folder, vocab_size=3)
    fix = told(SHAPES, folder, engine="native").fix
    assert fix is not None
    assert fix.command is None


@pytest.mark.parametrize("given", ["two", None, 2.5, "a/b[*]"])
def test_what_is_no_number_is_corrected_in_the_file(given: Any, folder: Path) -> None:
    """By a real shell."""
    whole = json.loads((folder / "config.json").read_text())
    change(folder, num_hidden_layers=given)
    command = correcting_command(folder, differences(folder))
    assert command is not None
    subprocess.run(["sh", "-c", command], check=True)
    assert json.loads((folder / "config.json").read_text()) == whole


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_a_number_format_that_does_not_exist_is_that_of_the_weights(key: str, folder: Path) -> None:
    """The profile's counts only after it was read."""
    whole = json.loads((folder / "config.json").read_text()) | {key: "float32"}
    change(folder, **{key: "float17"})
    fix = told("AttributeError: module 'torch' has no attribute 'float17'", folder).fix
    assert fix is not None
    assert (fix.patch, fix.command is not None) == (None, True)
    subprocess.run(["sh", "-c", fix.command or ""], check=True)
    assert json.loads((folder / "config.json").read_text()) == whole
    change(folder, **{key: "bfloat16"})
    assert differences(folder) == ()


def test_the_config_of_another_model_is_not_made_to_fit(folder: Path) -> None:
    change(folder, vocab_size=3, hidden_size=3, intermediate_size=3, num_hidden_layers=1)
    assert differences(folder) == ()


@pytest.mark.parametrize("key", ["quantization_config", "num_experts", "num_nextn_predict_layers", "text_config"])
def test_of_other_models_the_sizes_are_not_known(key: str, folder: Path) -> None:
    change(folder, vocab_size=3, **{key: {"a": 1} if key.endswith("config") else 2})
    assert differences(folder) == ()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_what_an_editor_saved_otherwise_is_recoded(encoding: str, folder: Path) -> None:
    """By a real shell; the diagnosis offers it."""
    path = folder / "config.json"
    text = path.read_text()
    path.write_bytes(text.encode(encoding))
    log = f"OSError: It looks like the config file at '{path}' is not a valid JSON file."
    fix = told(log, folder).fix
    assert fix is not None
    assert fix.command == recoding_command(path)
    assert fix.command is not None
    subprocess.run(["sh", "-c", fix.command], check=True)
    assert path.read_bytes() == text.encode()
    assert recoding_command(path) is None


def test_what_is_no_json_in_any_encoding_is_not_recoded(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'\xef\xbb\xbf{"cut": ')
    assert recoding_command(folder / "config.json") is None
