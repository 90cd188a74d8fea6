"""What preflight makes of sparse models, of weights in FP8 and of a cache in 8 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint.layout import SCALE
from appliance.home import Home
from appliance.plan.launch import NativePlan
from appliance.preflight.context import Report
from appliance.protocol import Severity
from tests.preflight.test_preflight_checks import card, look, machine, only
from tests.tiny import ALIGNED, FAMILIES, FP8, write_checkpoint


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_plan_on_every_device(home: Home, family: str) -> None:
    """In full and in FP8; on a GPU FP8 takes less."""
    write_checkpoint(home.models / "tiny", family, dtype="bfloat16", **ALIGNED)
    plain = [_weights(look(home, inventory=inventory)) for inventory in (machine(), machine(gpu=card()))]
    write_checkpoint(home.models / "tiny", family, dtype="bfloat16", **ALIGNED, quantization_config=FP8)
    fp8 = [_weights(look(home, inventory=inventory)) for inventory in (machine(), machine(gpu=card()))]
    assert fp8[0] == plain[0]
    assert fp8[1] < plain[1]


def _weights(report: Report) -> int:
    assert report.plan is not None, report.findings
    return report.plan.memory.weight_bytes


@pytest.mark.parametrize(("given", "kept"), [("fp8", "float8_e4m3fn"), ("fp8_e4m3", "float8_e4m3fn")])
def test_a_cache_in_8_bits_is_planned_as_it_is_kept(home: Home, given: str, kept: str) -> None:
    """The profile keeps its word, the core gets torch's, and a token takes a quarter of its float32."""
    write_checkpoint(home.models / "tiny")
    full, small = look(home).plan, look(home, {"kv-cache-dtype": given}).plan
    assert full is not None
    assert isinstance(small, NativePlan)
    assert small.effective["kv-cache-dtype"].value == given
    assert small.effective.context.kv_cache_dtype == small.engine_config().kv_cache_dtype == kept
    assert small.memory.bytes_per_token * 4 == full.memory.bytes_per_token


@pytest.mark.parametrize(
    ("quantised", "said", "id"), [(False, True, "tensor-missing"), (True, False, "tensor-dtype")], ids=str
)
def test_weights_of_another_format_than_the_config_says(home: Home, quantised: bool, said: bool, id: str) -> None:
    """A config.json of the same model in another format: found before anything is loaded."""
    config: dict[str, Any] = ALIGNED | ({"quantization_config": FP8} if quantised else {})
    folder = write_checkpoint(home.models / "tiny", **config)
    _say(folder, quantization_config=FP8 if said else None)
    findings = [finding for finding in look(home).findings if finding.severity is Severity.ERROR]
    assert id in [finding.id for finding in findings]
    assert all("self_attn" in (finding.field or "") for finding in findings)
    if said:
        assert (findings[0].field or "").endswith(SCALE)


def test_another_quantisation_is_one_error_and_names_what_runs(home: Home) -> None:
    """The checks that build on the config are skipped rather than reported again."""
    folder = write_checkpoint(home.models / "tiny")
    _say(folder, quantization_config={"quant_method": "awq", "bits": 4})
    finding = only(look(home))
    assert (finding.id, finding.value) == ("quantization-unsupported", "awq")
    assert finding.fix
    assert "FP8" in finding.fix.text


def _say(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    merged = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in merged.items() if value is not None}))
