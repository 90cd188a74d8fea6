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


@pytest.mark.parametrize(
    ("family", "method"), [("qwen3_next", "ngram"), ("deepseek_v4", "ngram"), ("deepseek_v4", "mtp")]
)
def test_drafts_are_refused_where_they_cannot_be_taken_back(home: Home, family: str, method: str) -> None:
    if family == "deepseek_v4":
        write_deepseek_v4(home.models / "tiny")
    else:
        write_checkpoint(home.models / "tiny", family)
    finding = only(look(home, {"speculative-config.method": method}))
    assert (finding.id, finding.value) == ("drafts-with-states", method)
    assert finding.fix
    assert look(home, finding.fix.patch).plan is not None


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
    write_checkpoint(folder, "deepseek_v32", num_nextn_predict_layers=1)
    assert only(look(home, mtp)).id == "mtp-native"


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
