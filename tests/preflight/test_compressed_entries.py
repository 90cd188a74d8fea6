"""DeepSeek V4 before its start: blocks that hold whole entries, what is refused by name, and the memory that the
published models need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.explain.report import report
from appliance.hardware.engine_machine import Machine
from appliance.hardware.known import KNOWN_GPUS
from appliance.home import Home
from appliance.plan.launch import NativePlan
from appliance.profile.document import load
from appliance.protocol import Severity
from tests.checkpoint.test_deepseek_v4 import FLASH, PRO
from tests.preflight.test_preflight_checks import card, look, machine, only
from tests.tiny import save
from tests.tiny_deepseek_v4 import CONFIG, QUANTISED, write_deepseek_v4
from tests.tiny_forms import load as load_tensors

ERROR = Severity.ERROR


@pytest.mark.parametrize("gpu", [False, True])
def test_a_plan_on_every_device(home: Home, gpu: bool) -> None:
    """Blocks of 256 tokens where the profile leaves it open; no CUDA graphs while torch computes what is its own."""
    write_deepseek_v4(home.models / "tiny", torch_dtype="bfloat16")
    plan = look(home, inventory=machine(gpu=card() if gpu else None)).plan
    assert isinstance(plan, NativePlan)
    assert (plan.effective["block-size"].value, plan.effective["block-size"].source) == (256, "model")
    config = plan.engine_config()
    assert (config.block_size, config.enforce_eager) == (256, True)
    assert plan.memory.state_bytes > 0
    assert plan.memory.num_snapshots > 0


def test_a_block_that_would_cut_entries(home: Home) -> None:
    write_deepseek_v4(home.models / "tiny")
    finding = only(look(home, {"block-size": 64}))
    assert (finding.id, finding.field, finding.value) == ("block-size-cuts-entries", "block-size", 64)
    assert finding.fix is not None
    assert finding.fix.patch == {"block-size": 256}
    plan = look(home, {"block-size": 128}).plan
    assert isinstance(plan, NativePlan)
    assert plan.engine_config().block_size == 128


@pytest.mark.parametrize(
    ("wanted", "dtype", "kept", "context"),
    [("auto", "bfloat16", "mxfp4", True), ("fp8", "bfloat16", "fp8", False), ("auto", "float32", "float32", True)],
)
def test_the_format_of_an_indexers_keys(home: Home, wanted: str, dtype: str, kept: str, context: bool) -> None:
    write_deepseek_v4(home.models / "tiny")
    plan = look(home, {"index-key-dtype": wanted, "dtype": dtype}).plan
    assert isinstance(plan, NativePlan)
    assert plan.effective["index-key-dtype"].value == kept
    assert plan.engine_config().index_key_dtype == wanted
    assert plan.effective.context.index_mxfp4 == context


def test_another_engine_has_an_indexers_keys_as_it_likes(home: Home) -> None:
    write_deepseek_v4(home.models / "tiny")
    effective = look(home, {"engine": "vllm"}).effective
    assert effective is not None
    assert (effective["index-key-dtype"].value, effective["index-key-dtype"].source) == ("auto", "default")


@pytest.mark.parametrize(
    ("changes", "settings"),
    [({}, {"dtype": "float32"}), ({"index_head_dim": 16, "qk_rope_head_dim": 8}, {"dtype": "bfloat16"})],
    ids=["in float32", "no whole groups"],
)
def test_keys_in_a_format_that_there_is_none_of(home: Home, changes: Any, settings: Any) -> None:
    write_deepseek_v4(home.models / "tiny", **changes)
    finding = only(look(home, {"index-key-dtype": "mxfp4"} | settings))
    assert (finding.id, finding.field, finding.value) == ("index-key-dtype-unsupported", "index-key-dtype", "mxfp4")
    assert finding.fix is not None
    assert finding.fix.patch == {"index-key-dtype": None}


def quantised(home: Home, **changes: Any) -> Path:
    sizes = {"num_hidden_layers": 2, "compress_ratios": [0, 4], "expert_dtype": "fp4"}
    return write_deepseek_v4(home.models / "tiny", **CONFIG | QUANTISED | sizes | changes)


@pytest.mark.parametrize("experts", ["fp4", "fp8"])
def test_quantised_checkpoints_have_a_plan(home: Home, experts: str) -> None:
    quantised(home, expert_dtype=experts)
    found = look(home, inventory=machine(gpu=card()))
    assert found.plan is not None
    assert "tensors-unused" not in [finding.id for finding in found.findings]


@pytest.mark.parametrize("name", ["layers.1.attn.wq_b.scale", "layers.1.ffn.experts.3.w2.scale"])
def test_a_missing_scale(home: Home, name: str) -> None:
    folder = quantised(home)
    tensors = load_tensors(folder)
    del tensors[name]
    save(tensors, folder / "model.safetensors")
    finding = only(look(home))
    assert (finding.id, finding.field) == ("tensor-missing", name)


@pytest.mark.parametrize(("holds", "says"), [("fp4", "fp8"), ("fp8", "fp4")])
def test_experts_of_another_format_than_the_config_says(home: Home, holds: str, says: str) -> None:
    folder = quantised(home, expert_dtype=holds)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"expert_dtype": says}))
    finding = only(look(home))
    assert (finding.id, finding.field, finding.value) == ("expert-dtype-contradicted", "expert_dtype", says)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"expert_dtype": holds}))
    assert not [finding for finding in look(home).findings if finding.severity is ERROR]


def test_ratios_of_the_wrong_length(home: Home) -> None:
    folder = write_deepseek_v4(home.models / "tiny")
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | {"compress_ratios": [0, 4, 128]}))
    finding = only(look(home))
    assert (finding.id, finding.field) == ("config-invalid", "compress_ratios")


def test_ranks_that_do_not_divide_groups(home: Home) -> None:
    """4 heads in 2 groups."""
    write_deepseek_v4(home.models / "tiny")
    finding = only(look(home, {"tensor-parallel-size": 4}))
    assert (finding.id, finding.value) == ("tensor-parallel-indivisible", 4)
    assert finding.fix is not None
    assert finding.fix.patch == {"tensor-parallel-size": 2}


@pytest.mark.parametrize("published", [FLASH, PRO], ids=["Flash", "Pro"])
def test_what_the_published_models_need(home: Home, published: dict[str, Any]) -> None:
    """Of any GPU: every op has a backend, experts are counted in four bits, and it is said by how much they do not fit:
    Flash takes a GPU of 180 GiB, or several."""
    (home.models / "tiny").mkdir(parents=True)
    (home.models / "tiny" / "config.json").write_text(json.dumps(CONFIG | published))
    profile = load({"name": "chat", "model": {"path": "tiny"}})
    inventory = machine()
    experts = published["num_hidden_layers"] * published["n_routed_experts"] * 3
    experts *= published["hidden_size"] * published["moe_intermediate_size"]
    for gpu in KNOWN_GPUS:
        if gpu.compute_capability < (8, 0):
            continue
        found = report(profile, home, machine=Machine(inventory=inventory, libraries={}), gpu=gpu)
        assert not found.refused
        assert found.memory is not None
        assert found.context.mxfp4_experts
        packed = experts * 17 / 32
        assert packed < found.memory.weight_bytes < 1.1 * packed
        assert found.memory.fits == (found.memory.needed_bytes <= found.memory.available_bytes)
        assert found.memory.fits == (published is FLASH and gpu.memory_gib >= 180)
        states = found.memory.state_bytes / (profile.max_num_seqs + 1)
        assert states / 1e6 == pytest.approx(15.4 if published is FLASH else 23.3, abs=0.06)
        assert found.memory.bytes_per_token == (3_585 if published is FLASH else 5_137)


@pytest.mark.parametrize("given", ["fp8", "fp8_e5m2"])
def test_a_cache_in_8_bits_is_refused(home: Home, given: str) -> None:
    """In 16 bits entries are packed to 8 already."""
    write_deepseek_v4(home.models / "tiny")
    findings = [finding for finding in look(home, {"kv-cache-dtype": given}).findings if finding.severity is ERROR]
    assert findings
    assert all(finding.fix is not None for finding in findings)
