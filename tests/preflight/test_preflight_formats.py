"""What preflight makes of sparse models, of weights in FP8 and of a cache in 8 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.checkpoint.layout import SCALE
from appliance.home import Home
from appliance.plan.launch import NativePlan
from appliance.preflight.context import Report
from appliance.protocol import Severity
from tests.preflight.test_preflight_checks import card, look, machine, only
from tests.tiny import ALIGNED, FAMILIES, FP8, aligned, block_fp8, save, write_checkpoint
from tests.tiny_forms import as_seeing, fuse_experts, load
from tests.tiny_shapes import LATENT


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_plan_on_every_device(home: Home, family: str) -> None:
    """In full and in FP8; on a GPU FP8 takes less."""
    write_checkpoint(home.models / "tiny", family, dtype="bfloat16", **aligned(family))
    plain = [_weights(look(home, inventory=inventory)) for inventory in (machine(), machine(gpu=card()))]
    quantised = aligned(family) | {"quantization_config": block_fp8(family)}
    write_checkpoint(home.models / "tiny", family, dtype="bfloat16", **quantised)
    fp8 = [_weights(look(home, inventory=inventory)) for inventory in (machine(), machine(gpu=card()))]
    assert fp8[0] == plain[0]
    assert fp8[1] < plain[1]


def test_the_language_model_of_one_that_sees_is_ready(home: Home) -> None:
    """With its experts fused; what sees and what drafts is left out without a word. Another tensor is not."""
    folder = home.models / "tiny"
    fuse_experts(as_seeing(write_checkpoint(folder, "qwen3_5_moe", dtype="bfloat16")))
    report = look(home)
    assert report.plan is not None
    assert "tensors-unused" not in [finding.id for finding in report.findings]
    assert "delta_rule" in [chosen.op.name for chosen in report.plan.effective.selection]
    _say(
        folder,
        architectures=["Qwen3_5MoeForCausalLM"],
        **json.loads((folder / "config.json").read_text())["text_config"],
    )
    assert "tensor-missing" in [finding.id for finding in look(home).findings]


@pytest.mark.parametrize("changes", [{"linear_num_key_heads": 3}, {"layer_types": ["full_attention"]}])
def test_layers_that_contradict_the_config_are_found(home: Home, changes: dict[str, Any]) -> None:
    folder = write_checkpoint(home.models / "tiny", "qwen3_5")
    _say(folder, **changes)
    finding = only(look(home))
    assert finding.id == "config-invalid"
    assert finding.field == next(iter(changes))
    assert finding.fix is not None


def test_a_list_of_layers_that_the_weights_contradict_is_found(home: Home) -> None:
    folder = write_checkpoint(home.models / "tiny", "qwen3_5")
    _say(folder, layer_types=["full_attention", "linear_attention"])
    assert [finding.id for finding in look(home).findings] == ["layer-kinds-contradicted"]


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


@pytest.mark.parametrize("stored", ["F32", "F8_E8M0", "U8"])
def test_scales_that_are_powers_of_two_are_read_in_float32_only(home: Home, stored: str) -> None:
    """As DeepSeek V3.1 has them; a byte each is another format, and is refused by name."""
    quantised = FP8 | {"scale_fmt": "ue8m0"}
    folder = write_checkpoint(home.models / "tiny", **ALIGNED, quantization_config=quantised)
    tensors = load(folder)
    for name, (_, values) in tensors.items():
        if name.endswith(SCALE):
            exponents = np.floor(np.log2(values))
            tensors[name] = stored, np.exp2(exponents) if stored == "F32" else (exponents + 127).astype(np.uint8)
    save(tensors, folder / "model.safetensors")
    if stored == "F32":
        assert look(home).plan is not None
        return
    finding = only(look(home))
    assert (finding.id, finding.value) == ("tensor-dtype", stored)
    assert (finding.field or "").endswith(SCALE)
    assert finding.fix
    assert "float32" in finding.fix.text


@pytest.mark.parametrize("family", LATENT)
@pytest.mark.parametrize("gpu", [False, True])
def test_a_cache_that_no_backend_has_in_8_bits_is_refused_with_a_fix(home: Home, family: str, gpu: bool) -> None:
    """Latents are kept in 16 bits or more: one finding, and the fix lets the cache follow the model's format."""
    write_checkpoint(home.models / "tiny", family, dtype="bfloat16", **aligned(family))
    inventory = machine(gpu=card()) if gpu else machine()
    finding = only(look(home, {"kv-cache-dtype": "fp8"}, inventory=inventory))
    assert (finding.id, finding.field, finding.value) == ("kv-cache-dtype-unsupported", "kv-cache-dtype", "fp8")
    assert finding.fix
    assert finding.fix.patch == {"kv-cache-dtype": None}


def test_tensors_of_layers_that_draft_are_no_matter(home: Home) -> None:
    """DeepSeek V3's checkpoints have a layer more than the model: not a word about it, but about any other."""
    folder = write_checkpoint(home.models / "tiny", "deepseek_v3", num_hidden_layers=4)
    _say(folder, num_hidden_layers=3, num_nextn_predict_layers=1)
    assert look(home).findings == []
    _say(folder, num_hidden_layers=2)
    finding = next(finding for finding in look(home).findings if finding.id == "tensors-unused")
    assert (finding.field or "").startswith("model.layers.3.")


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
