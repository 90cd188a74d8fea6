"""Drafts that a profile asks for: refused where model or engine cannot do them, planned for where they can."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from appliance.home import Home
from appliance.plan.launch import NativePlan
from tests.preflight.test_preflight_checks import look, only
from tests.tiny import write_checkpoint
from tests.tiny_deepseek_v4 import write_deepseek_v4


@pytest.fixture
def tiny(home: Home) -> Path:
    return write_checkpoint(home.models / "tiny")


def test_windows_and_entries_have_room_for_drafts(home: Home) -> None:
    """Of DeepSeek V4, whose head has a window of its own."""
    write_deepseek_v4(home.models / "tiny")
    plans = {}
    for method in ("none", "ngram", "mtp"):
        plans[method] = look(home, {"speculative-config.method": method}).plan
        assert isinstance(plans[method], NativePlan)
    none, ngram, mtp = plans.values()
    assert ngram.memory.state_bytes > none.memory.state_bytes
    assert mtp.memory.state_bytes > none.memory.state_bytes
    assert mtp.memory.bytes_per_token == none.memory.bytes_per_token
    assert mtp.memory.weight_bytes > ngram.memory.weight_bytes == none.memory.weight_bytes


def test_a_head_is_planned_for_where_it_drafts(home: Home) -> None:
    """Its weights and its pages; one token, and a head that the engine has no use for is said."""
    folder = write_checkpoint(home.models / "tiny", "deepseek_v3", num_nextn_predict_layers=1)
    mtp = {"speculative-config.method": "mtp"}
    with_it, without = look(home, mtp).plan, look(home).plan
    assert isinstance(with_it, NativePlan)
    assert isinstance(without, NativePlan)
    assert (with_it.engine_config().drafts, with_it.engine_config().num_speculative_tokens) == ("mtp", 1)
    assert with_it.memory.bytes_per_token * 3 == without.memory.bytes_per_token * 4
    assert with_it.memory.weight_bytes > without.memory.weight_bytes
    more = only(look(home, mtp | {"speculative-config.num-speculative-tokens": 2}))
    assert (more.id, more.value) == ("drafts-exceed-head", 2)
    shutil.rmtree(folder)
    write_checkpoint(folder, "qwen3_5", mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=True)
    assert only(look(home, mtp)).id == "mtp-native"


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5", "qwen3_5_moe"])
def test_states_have_room_for_drafts(home: Home, family: str) -> None:
    """More of it for more of them, and little beside a state; a head's keys and values are those of its own layer. A
    checkpoint without a head is refused one."""
    folder = write_checkpoint(home.models / "tiny", family, mtp_num_hidden_layers=1)
    plans = {}
    for method in ("none", "ngram", "mtp"):
        plans[method] = look(home, {"speculative-config.method": method, "dtype": "bfloat16"}).plan
        assert isinstance(plans[method], NativePlan)
    of_states = {method: plan.memory.state_bytes for method, plan in plans.items() if plan}
    assert of_states["none"] < of_states["mtp"] < of_states["ngram"]
    assert plans["mtp"].memory.bytes_per_token == 2 * plans["ngram"].memory.bytes_per_token
    shutil.rmtree(folder)
    write_checkpoint(folder, family)
    finding = only(look(home, {"speculative-config.method": "mtp"}))
    assert (finding.id, finding.fix.patch) == ("mtp-head-missing", {"speculative-config.method": "ngram"})


def test_drafts_reach_the_engine_and_its_plan(home: Home, tiny: Path) -> None:
    """Few sequences are planned with more rows; many have enough of them."""
    few, plain = ({"max-num-seqs": 4, "speculative-config.method": method} for method in ("ngram", "none"))
    drafting, other = look(home, few).plan, look(home, plain).plan
    assert isinstance(drafting, NativePlan)
    assert isinstance(other, NativePlan)
    config = drafting.engine_config()
    assert (config.drafts, config.num_speculative_tokens) == ("ngram", 4)
    assert other.engine_config().num_speculative_tokens == 0
    assert drafting.memory.workspace.step >= other.memory.workspace.step
