"""Settings that a message names though nothing shows that the launch set them."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.named_settings import fix_of, is_subject, setting_named

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
            {"reasoning-parser": "deepseek_r1"},
        ),
        ("argument --tool-call-parser: invalid choice: 'zzz' (choose from 'hermes', 'qwen3')", None),
    ],
)
def test_the_value_that_a_message_asks_for_is_the_patch(message: str, patch: dict[str, Any] | None) -> None:
    name = setting_named(message)
    assert name is not None
    assert fix_of(name, message).patch == patch


def test_a_message_that_begins_with_a_variable_is_about_it() -> None:
    """Whatever address it mentions."""
    assert is_subject("VLLM_ODD 'x' is no number: https://example.org/hub")
    assert not is_subject("could not download from the hub, as VLLM_ODD says")
    found = diagnose(number_lines("ValueError: VLLM_ODD 'x' is no number: https://example.org/hub"), failed=True)
    assert found.family == "config"
    assert found.fix is not None
    assert "VLLM_ODD" in found.fix.text
