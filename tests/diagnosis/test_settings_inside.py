# ruff: noqa: E501 - log lines are as long as they are
"""Settings that are JSON objects: the value within them that a message speaks of, and a fix that changes no more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.protocol import Diagnosis

OVERRIDES = "vllm.extra-args.hf-overrides"


def told(text: str, **extra: Any) -> Diagnosis:
    flags = {name.replace("_", "-"): value for name, value in extra.items()}
    return diagnose(number_lines(text), profile={"engine": "vllm", "vllm": {"extra-args": flags}}, failed=True)


def patch_of(found: Diagnosis) -> dict[str, Any]:
    return dict((found.fix.patch or {}) if found.fix else {})


def test_what_replaces_an_object_of_the_models_goes_whole() -> None:
    """Without its type, rope_parameters is none; the rest of the overrides stays as it was."""
    given = json.dumps({"rope_parameters": {"rope_type": "zigzag", "rope_theta": 5000.0}, "hidden_size": 64})
    found = told("ValueError: Unknown RoPE scaling type zigzag", hf_overrides=given)
    assert found.family == "model-config"
    assert "rope_parameters.rope_type" in found.summary
    assert json.loads(patch_of(found)[OVERRIDES]) == {"hidden_size": 64}


def test_an_object_that_would_be_empty_goes_as_a_whole() -> None:
    found = told(
        "ValueError: Unknown RoPE scaling type zigzag", hf_overrides='{"rope_parameters": {"rope_type": "zigzag"}}'
    )
    assert patch_of(found) == {OVERRIDES: None}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"layers": [{"rope_type": "zigzag", "size": 4}, 7]}, {"layers": [{"size": 4}, 7]}),
        ({"layers": [[{"rope_type": "zigzag"}], 7]}, {"layers": [7]}),
        ({"rope_type": ["zigzag", "linear"]}, {"rope_type": ["linear"]}),
    ],
)
def test_what_is_inside_a_list_goes_alone(given: dict[str, Any], left: dict[str, Any]) -> None:
    found = told("ValueError: Unknown RoPE scaling type zigzag", hf_overrides=json.dumps(given))
    assert "rope_type in vllm.extra-args.hf-overrides" in found.summary
    assert json.loads(patch_of(found)[OVERRIDES]) == left


def test_the_value_that_the_message_allows_is_set_inside() -> None:
    lines = """\
vllm serve: error: argument --structured-outputs-config: 1 validation error for StructuredOutputsConfig
backend
  Input should be 'auto', 'xgrammar', 'guidance' or 'outlines' [type=literal_error, input_value='xgramar', input_type=str]
"""
    found = told(lines, structured_outputs_config='{"backend": "xgramar", "disable_any_whitespace": true}')
    patched = json.loads(patch_of(found)["vllm.extra-args.structured-outputs-config"])
    assert patched == {"backend": "xgrammar", "disable_any_whitespace": True}


@pytest.mark.parametrize(
    ("message", "given", "named"),
    [
        (
            "RuntimeError: loaded weight shape does not match: torch.Size([300, 64]) and torch.Size([512, 64])",
            300,
            True,
        ),
        (
            "RuntimeError: loaded weight shape does not match: torch.Size([301, 64]) and torch.Size([512, 64])",
            300,
            False,
        ),
    ],
)
def test_a_number_that_replaces_the_models_own(message: str, given: int, named: bool) -> None:
    """Where the message shows it, it is what does not fit the weights."""
    found = told(message, hf_overrides=json.dumps({"vocab_size": given}))
    assert (f"vocab_size in {OVERRIDES}" in found.summary) is named


def test_what_the_launch_chose_instead_of_the_model() -> None:
    """A quantisation that the checkpoint does not have, if it was the launch that asked for it."""
    message = "ValueError: Cannot find the config file for awq"
    assert patch_of(told(message, quantization="awq")) == {"vllm.extra-args.quantization": None}
    assert patch_of(told(message, quantization="gptq")) == {}


@pytest.mark.parametrize("given", ["{broken", "[1, 2]", '{"a": ' * 2000])
def test_what_is_no_object_is_a_value_as_it_stands(given: str) -> None:
    assert told("ValueError: Unknown RoPE scaling type zigzag", hf_overrides=given).family == "model-config"


def test_the_variable_that_the_line_of_code_reads() -> None:
    """Where the message says nothing of where its value came from."""
    lines = """\
Traceback (most recent call last):
  File "/opt/vllm/envs.py", line 9, in <lambda>
    "VLLM_ODD_TIMEOUT": lambda: int(os.getenv("VLLM_ODD_TIMEOUT", "5")),
ValueError: invalid literal for int() with base 10: 'later'
"""
    found = told(lines)
    assert found.family == "config"
    assert "VLLM_ODD_TIMEOUT" in found.summary
    assert found.fix is not None
    assert "VLLM_ODD_TIMEOUT" in found.fix.text


def test_the_further_lines_of_an_unknown_message_are_read() -> None:
    lines = """\
Traceback (most recent call last):
  File "/opt/torch/_logging/_internal.py", line 9, in _parse
    raise ValueError(_message(settings))
ValueError:
Invalid log settings: gibberish, must be a comma separated list of log names.
For more information, try TORCH_LOGS="help"
"""
    found = told(lines)
    assert "gibberish" in found.summary
    assert found.fix is not None
    assert "TORCH_LOGS" in found.fix.text


def test_a_long_list_of_what_is_allowed_is_no_cause() -> None:
    """Whatever its words would mean elsewhere."""
    allowed = ", ".join(f"{word}_graphs" for word in ("nccl", "gloo", "c10d", *"abcdefghijklm"))
    found = told(f"ValueError: Invalid settings: gibberish, valid are: {allowed}, c10d, gloo")
    assert found.family != "nccl"


@pytest.mark.parametrize(
    ("ended", "value"),
    [
        ("ModuleNotFoundError: No module named 'acme_odd'", "acme_odd.guard:Guard"),
        ("AttributeError: module 'acme_odd.guard' has no attribute 'Gard'", "acme_odd.guard.Gard"),
    ],
)
@pytest.mark.parametrize("profile", [None, {"engine": "vllm"}])
def test_what_a_setting_names_to_be_imported(ended: str, value: str, profile: dict[str, Any] | None) -> None:
    """The environment lacks nothing: the setting is wrong, whoever gave it. What no setting names is missing there."""
    start = f"(APIServer pid=1) INFO 11-26 10:00:00 [utils.py:2] non-default args: {{'model': '/m', 'middleware': ['{value}']}}\n"
    frame = 'Traceback (most recent call last):\n  File "/opt/site-packages/vllm/utils/import_utils.py", line 9, in resolve\n    get()\n'
    found = diagnose(number_lines(f"{start}{frame}{ended}\n"), profile=profile, failed=True)
    assert (found.family, found.cause) == ("config", "setting-not-importable")
    assert found.fix is not None
    assert "middleware" in found.fix.text
    assert diagnose(number_lines(f"{frame}{ended}\n")).family == "abi"


def test_a_refused_command_line_ends_a_start_whatever_it_says() -> None:
    line = "vllm serve: error: Odd fields for --lora-modules: {} - OddPath.__init__() missing 1 required positional argument\n"
    found = diagnose(number_lines(line))
    assert found.family == "config"
    assert found.fix is not None
    assert "--lora-modules" in found.fix.text


def test_the_flag_of_a_class_that_was_refused() -> None:
    lines = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig
odd_lookup_max
  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, input_type=int]
"""
    found = diagnose(number_lines(lines))
    assert found.fix is not None
    assert "--speculative-config" in found.fix.text


@pytest.mark.parametrize(("code", "named"), [("size == self.org_vocab_size", True), ("size == self.vocabulary", False)])
def test_a_check_compares_what_the_launch_replaced(code: str, named: bool) -> None:
    """A failed assertion has no message; its code names the value."""
    lines = f"""\
Traceback (most recent call last):
  File "/opt/vllm/model_executor/model_loader/weight_utils.py", line 9, in load_weights
    assert {code}
AssertionError
"""
    found = told(lines, hf_overrides='{"vocab_size": 300}')
    assert (f"vocab_size in {OVERRIDES}" in found.summary) is named


def test_weights_that_do_not_fit_what_the_launch_made_of_the_model() -> None:
    message = "ValueError: Following weights were not initialized from checkpoint: {'model.layers.7.norm.weight'}"
    assert patch_of(told(message, hf_overrides='{"num_hidden_layers": 8}')) == {OVERRIDES: None}
    assert patch_of(told(message)) == {}


@pytest.mark.parametrize("value", ["odd_streamer", "safetensors"])
def test_a_setting_that_needs_a_package_which_is_missing(value: str) -> None:
    found = told("ModuleNotFoundError: No module named 'odd_streamer'", load_format=value)
    assert (found.family, found.cause) == ("abi", "package-missing")
    assert patch_of(found) == ({"vllm.extra-args.load-format": None} if value == "odd_streamer" else {})
