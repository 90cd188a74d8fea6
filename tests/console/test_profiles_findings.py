"""Preflight's findings beside the form: the worst first, with what says so, and their fixes one by one or all at
once."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from appliance.protocol import Finding, Fix, Severity
from console.profiles.form import to_values
from console.profiles.inspection import Inspection
from console.profiles.store import ProfileStore
from console.profiles.words import field_label, field_value
from tests.tiny import write_checkpoint

HTMX = {"HX-Request": "true"}


@pytest.fixture
def model(home):
    return write_checkpoint(home.models / "Tiny", dtype="bfloat16")


def sent(**settings):
    return to_values({"name": "chat", "model": {"path": "Tiny"}, **settings})


def patches(response):
    return [json.loads(unescape(text)) for text in re.findall(r'name="patch" value="([^"]+)"', response.text)]


async def test_errors_come_first_with_what_says_so_and_all_changes_are_one_click(client, model):
    """The one patch is that of the others together, and with it the findings are gone."""
    values = sent(**{"max-model-len": 9999, "vllm": {"environment": {"NCCL_DEBUG": "INFO"}}})
    said = await client.post("/profiles/-/check", data=values, headers=HTMX)
    errors, warnings = said.text.index("finding-error"), said.text.index("finding-warning")
    assert errors < warnings
    assert "config.json: max_position_embeddings 512" in said.text
    together, *single = patches(said)
    assert together == {"max-model-len": 512, "vllm.environment": None}
    assert single == [{"max-model-len": 512}, {"vllm.environment": None}]
    form = await client.post("/profiles/-/new", data=values | {"patch": json.dumps(together)})
    assert form.status_code == 200
    assert "finding-error" not in form.text
    assert "finding-warning" not in form.text


async def test_a_finding_names_its_setting_as_the_form_does(client, console, model):
    """Its label, and its value with grouped digits."""
    document = {"name": "chat", "model": {"path": "Tiny"}, "max-model-len": 9999}
    await ProfileStore(console.database).create(document, author="ann")
    said = await client.get("/profiles/chat")
    (about,) = re.findall(r'class="finding-field">(.*?)</p>', said.text)
    assert field_label("max-model-len") in about
    assert "9,999" in about


def test_what_is_no_setting_is_written_as_the_system_does():
    assert (field_label("port"), field_value("port", 8080)) == ("", "8080")


async def test_one_fix_has_one_button(client, model):
    said = await client.post("/profiles/-/check", data=sent(**{"max-model-len": 9999}), headers=HTMX)
    assert patches(said) == [{"max-model-len": 512}]


async def test_a_command_says_where_it_belongs_and_is_never_run(client, model, monkeypatch):
    """It can be copied."""
    monkeypatch.setenv("INGOT_CASTS", "/casts")
    said = await client.post("/profiles/-/check", data=sent(), headers=HTMX)
    assert "unset INGOT_CASTS; export INGOT_CAST=/casts" in unescape(said.text)
    assert "In a terminal on the machine that runs the engine." in said.text


def test_what_a_person_has_to_decide_is_not_among_all_changes():
    def found(id, patch):
        return Finding(id=id, severity=Severity.ERROR, message="", fix=Fix(text="", patch=patch))

    digest, one, two = found("digest-differs", {"model.digest": "x"}), found("a", {"a": 1}), found("b", {"b": 2})
    assert Inspection(findings=[digest, one, two]).all_fixes == {"a": 1, "b": 2}
    assert Inspection(findings=[digest, one]).all_fixes is None
