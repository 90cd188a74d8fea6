# ruff: noqa: E501 - log lines are as long as they are
"""Settings that a message names though nothing shows that the launch set them."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.named_settings import fix_of, is_subject, setting_named
from appliance.diagnosis.provenance import LaunchSettings
from appliance.diagnosis.searchable import Searchable

UNKNOWN = LaunchSettings(Searchable([]), None)

NAMED = (
    ("VLLM_FROBNICATE '7x' looks odd, see https://example.org", "VLLM_FROBNICATE"),
    ("give the model itself instead of the `--model` option", "--model"),
    ("max_odd_items (9) is larger than max_num_batched_tokens (4)", "--max-num-batched-tokens"),
    ("install the packages before configuring 'odd_traces_endpoint'", "--odd-traces-endpoint"),
    ("the frobnicator of layer_norm failed", None),
)


@pytest.mark.parametrize(("message", "name"), NAMED)
def test_the_setting_that_a_message_names(message: str, name: str | None) -> None:
    assert setting_named(message) == name


@pytest.mark.parametrize(
    ("message", "patch"),
    [
        ("odd (3100) is larger than max_num_batched_tokens (2048). Increase it.", {"max-num-batched-tokens": 3100}),
        (
            "argument --reasoning-parser: invalid choice: 'deepseekr1' (choose from 'deepseek_r1', 'qwen3')",
            {"vllm.extra-args.reasoning-parser": "deepseek_r1"},
        ),
        ("argument --dtype: invalid choice: 'bfloat-16' (choose from 'auto', 'bfloat16')", {"dtype": "bfloat16"}),
        (
            "argument --tool-call-parser: invalid choice: 'zzz' (choose from 'hermes', 'qwen3')",
            {"vllm.extra-args.tool-call-parser": None},
        ),
    ],
)
def test_the_value_that_a_message_asks_for_is_the_patch(message: str, patch: dict[str, Any] | None) -> None:
    name = setting_named(message)
    assert name is not None
    assert fix_of(name, message, UNKNOWN).patch == patch


@pytest.mark.parametrize(
    "message",
    [
        "argument --download-dir: invalid choice: '/srv/on' (choose from '/srv/one', '/srv/two')",
        "argument --frobnicate: invalid choice: 'helo' (choose from 'hello', 'bye')",
        "argument --seed: invalid choice: 'one1' (choose from 'one', 'two')",
        "launch_server.py: error: argument --dtype: invalid choice: 'bfloat-16' (choose from 'auto', 'bfloat16')",
        "sglang serve: error: argument --dtype: invalid choice: 'bfloat-16' (choose from 'auto', 'bfloat16')",
    ],
)
def test_what_no_profile_may_hold_is_no_patch(message: str) -> None:
    """What reaches outside the model's folder, what vLLM does not have, another type's value, another program's."""
    name = setting_named(message)
    assert name is not None
    fix = fix_of(name, message, UNKNOWN)
    assert fix.patch is None
    assert name in fix.text


def test_a_patch_that_makes_the_profile_invalid_is_none() -> None:
    message = "odd (3100) is larger than max_num_seqs (2048). Increase it."
    own = LaunchSettings(Searchable([]), {"name": "a", "model": {"path": "m"}, "engine": "vllm"})
    assert fix_of("--max-num-seqs", message, own).patch == {"max-num-seqs": 3100}
    assert fix_of("--max-num-seqs", message.replace("3100", "310000000"), own).patch is None


def test_a_message_that_begins_with_a_variable_is_about_it() -> None:
    """Whatever address it mentions."""
    assert is_subject("VLLM_ODD 'x' is no number: https://example.org/hub")
    assert not is_subject("could not download from the hub, as VLLM_ODD says")
    found = diagnose(number_lines("ValueError: VLLM_ODD 'x' is no number: https://example.org/hub"), failed=True)
    assert found.family == "config"
    assert found.fix is not None
    assert "VLLM_ODD" in found.fix.text


@pytest.mark.parametrize(
    ("message", "patch"),
    [
        ("KeyError: 'invalid tool call parser: uneve (chose from { even,uneven })'", {"vllm.extra-args.tool-call-parser": "uneven"}),
        ("KeyError: \"Reasoning parser 'uneve' not found. Available parsers: even, uneven\"",
         {"vllm.extra-args.reasoning-parser": "uneven"}),
        ("KeyError: \"Reasoning parser 'zzz' not found. Available parsers: even, uneven\"",
         {"vllm.extra-args.reasoning-parser": None}),
    ],
)  # fmt: skip
def test_a_misspelt_parser_is_corrected(message: str, patch: dict[str, Any]) -> None:
    """Where the message lists one that is meant."""
    found = diagnose(number_lines(message), failed=True)
    assert found.cause == "parser-name"
    assert found.fix is not None
    assert found.fix.patch == patch
