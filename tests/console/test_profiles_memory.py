"""The memory plan on the pages of profiles: what it says while one types, and the button with the largest context."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from appliance.profile.document import load
from appliance.profile.schema import BUNDLED_MODEL
from console.profiles.form import to_values
from console.profiles.inspection import Inspector
from tests.tiny import write_checkpoint

HTMX = {"HX-Request": "true"}


@pytest.fixture
def model(home):
    return write_checkpoint(home.models / "Long", max_position_embeddings=8192)


def fields(**settings):
    document = {"name": "chat", "model": {"path": "Long"}, "device": "cpu", **settings}
    return {"view": "fields", **to_values(document)}


async def checked(client, **settings) -> str:
    said = await client.post("/profiles/-/check", data=fields(**settings), headers=HTMX)
    assert said.status_code == 200
    return unescape(said.text)


async def test_the_bar_says_in_words_what_it_shows(client, model):
    """Each part with its size, for those who cannot see the bar; and each has its place in the legend."""
    text = await checked(client)
    [said] = re.findall(r'role="img" aria-label="(Memory of [^"]+)"', text)
    legend = re.findall(r'<div class="memory-(\w+)"><dt>.*?</i>([^<]+)</dt><dd>([^<]+)</dd>', text)
    assert [key for key, _, _ in legend][:3] == ["weights", "cache", "workspace"]
    for _, label, size in legend:
        assert f"{label} {size}" in said
    assert 'data-fits="yes"' in text


async def test_the_largest_context_that_fits_is_one_click(client, model):
    """As a patch of the form that is being filled in; not offered where it is what the profile says."""
    text = await checked(client, **{"max-model-len": 2048})
    patch = json.loads(re.findall(r'form="profile-form" name="patch" value="(\{"max-model-len[^>]*?\})"', text)[0])
    assert patch == {"max-model-len": 8192}
    applied = await client.post(
        "/profiles/-/new", data=fields(**{"max-model-len": 2048}) | {"patch": json.dumps(patch)}
    )
    assert 'name="max-model-len" value="8192"' in applied.text
    assert '{"max-model-len' not in await checked(client, **{"max-model-len": 8192})


async def test_what_does_not_fit_says_so(client, model):
    text = await checked(client, **{"kv-cache-memory-bytes": "1 MiB"})
    assert 'data-fits="no"' in text
    assert '{"max-model-len' in text


async def test_a_model_that_only_vllm_runs_has_a_plan_too(client, model):
    """Told from its config.json; and none where that speaks of attention that is not known."""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["GemmaForCausalLM"]}))
    assert load({"name": "chat", "model": {"path": "Long"}, "engine": "vllm"}).engine == "vllm"
    text = await checked(client, engine="vllm")
    assert "data-fits" in text
    (model / "config.json").write_text(json.dumps(config | {"layer_types": ["of a new kind"] * 2}))
    assert "data-fits" not in await checked(client, engine="vllm")


def test_the_table_and_the_bar_of_vllm_say_the_same(home):
    """The cache that the native engine would take is not shown as vLLM's."""
    document = {"schema": 1, "name": "chat", "model": {"path": BUNDLED_MODEL}, "device": "cpu", "engine": "vllm"}
    found = Inspector(home).inspect(document)
    assert found.effective["kv-cache-memory-bytes"].value == found.memory.cache_bytes
    assert found.effective["kv-cache-memory-bytes"].why
    given = Inspector(home).inspect(document | {"kv-cache-memory-bytes": "64 MiB"})
    assert (given.effective["kv-cache-memory-bytes"].value, given.effective["max-num-seqs"].source) == (
        64 << 20,
        "default",
    )
