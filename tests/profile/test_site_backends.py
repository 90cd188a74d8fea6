"""What a profile may say of single sites, before a model is looked at."""

from __future__ import annotations

import re

import pytest

from appliance.profile.document import load, to_document
from appliance.profile.json_schema import json_schema
from appliance.profile.validation import check

DOCUMENT = {"name": "chat", "model": {"path": "bundled"}}


def test_a_site_and_its_backend_are_kept() -> None:
    given = DOCUMENT | {"site-backends": {"linear@64x4096:float32": "torch", "paged_attention@32x128x8": "auto"}}
    profile = load(given)
    assert profile.site_backends == given["site-backends"]
    assert to_document(profile)["site-backends"] == given["site-backends"]
    assert load(DOCUMENT).site_backends == {}


@pytest.mark.parametrize(
    ("name", "backend", "remedy"),
    [
        ("linear", "torch", "ingot explain"),
        ("linear@", "torch", "ingot explain"),
        ("linaer@4x4", "torch", "Did you mean linear?"),
        ("linear@4x4", "tirton", "Did you mean triton?"),
        ("linear@4x4", "flash-attn", "auto, triton, cpp, onednn, torch"),
        ("paged_attention@4x4x4", "flash-attn", "Did you mean flash"),  # vLLM's, but for one of ours
        ("linear@4x4", 7, "auto, triton, cpp, onednn, torch"),
        (7, "torch", "ingot explain"),
    ],
)
def test_what_is_no_site_or_no_backend_is_refused_with_the_nearest(name: object, backend: object, remedy: str) -> None:
    (problem,) = check(DOCUMENT | {"site-backends": {name: backend}})
    assert problem.field == f"site-backends.{name}"
    assert remedy in problem.remedy


def test_the_schema_says_the_same() -> None:
    described = json_schema()["properties"]["site-backends"]
    matching = [enum for pattern, enum in described["patternProperties"].items() if re.search(pattern, "linear@4x4")]
    assert matching == [{"enum": ["auto", "triton", "cpp", "onednn", "torch"]}]
    assert described["additionalProperties"] is False
