"""What config.json says of a model's layers and heads, held against its weights and against the ranks that share it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from appliance.home import Home
from appliance.protocol import Severity
from tests.preflight.test_preflight_checks import look, only
from tests.tiny import write_checkpoint
from tests.tiny_forms import as_seeing


@pytest.mark.parametrize("inside", [False, True], ids=["plain", "within one that sees"])
def test_layers_of_another_kind_than_the_config_says_are_named(home: Home, inside: bool) -> None:
    """Once, by the key that says it, rather than as so many tensors that are missing."""
    kinds = ["linear_attention", "full_attention", "full_attention"]
    tiny = write_checkpoint(home.models / "tiny", "qwen3_5", num_hidden_layers=3, layer_types=kinds)
    if inside:
        as_seeing(tiny)
    assert not [finding for finding in look(home).findings if finding.severity is Severity.ERROR]
    path = tiny / "config.json"
    config = json.loads(path.read_text())
    config.get("text_config", config)["layer_types"] = kinds[::-1]
    path.write_text(json.dumps(config))
    finding = only(look(home))
    assert (finding.id, finding.field, finding.value) == ("layer-kinds-contradicted", "layer_types", kinds[::-1])
    assert [name.rpartition("layers.")[2] for name in finding.evidence] == ["0.linear_attn", "2.self_attn"]
    assert finding.fix


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("qwen3_next", {}, "2 key heads of linear attention"),
        (
            "qwen3_5",
            {"linear_num_key_heads": 4, "num_attention_heads": 6, "num_key_value_heads": 3},
            "6 attention heads",
        ),
        ("deepseek_v3", {"num_attention_heads": 6, "num_key_value_heads": 6}, "6 attention heads"),
    ],
)
def test_heads_that_the_ranks_do_not_divide_are_named(
    home: Home, family: str, changes: dict[str, Any], words: str
) -> None:
    """Of whichever kind, with the next smaller number that works."""
    write_checkpoint(home.models / "tiny", family, **changes)
    finding = only(look(home, {"tensor-parallel-size": 4}))
    assert (finding.id, finding.field, finding.value) == ("tensor-parallel-indivisible", "tensor-parallel-size", 4)
    assert words in finding.message
    assert finding.fix is not None
    smaller = finding.fix.patch["tensor-parallel-size"]
    fixed = look(home, {"tensor-parallel-size": smaller})
    assert not [found for found in fixed.findings if found.severity is Severity.ERROR]
