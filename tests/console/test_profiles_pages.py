"""The pages of profiles through the application: what a browser gets, what programs get, and that nothing is lost."""

from __future__ import annotations

import asyncio
import json
import re
from html import unescape

import httpx
import pytest
from sqlalchemy import event

from appliance.profile.active import read_active
from appliance.profile.schema import SETTINGS
from appliance.protocol import Finding, Severity
from console.access.token import ensure_console_token, program_header
from console.db.models import Launch
from console.profiles.form import to_values
from console.profiles.inspection import Inspector
from console.profiles.store import ProfileStore
from tests.tiny import write_checkpoint

HTMX = {"HX-Request": "true"}


@pytest.fixture
def store(console):
    return ProfileStore(console.database)


@pytest.fixture
def model(home):
    return write_checkpoint(home.models / "Tiny")


@pytest.fixture
async def at_once(client, app):
    """Sends several posts at the same time, which Litestar's own client does one after the other. The answers are those
    at the end of their redirects."""

    async def send(*posts):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport,
            base_url=client.base_url,
            headers=client.headers,
            cookies=client.cookies,
            follow_redirects=True,
        ) as sender:
            return await asyncio.gather(*(sender.post(path, data=data) for path, data in posts))

    return send


def chat(**settings):
    return {"name": "chat", "model": {"path": "Tiny"}, **settings}


def fields(document, **more):
    """What a browser sends for the form of a document."""
    return {**to_values(document), "view": "fields", "base": "1", "note": "", **more}


def text_of(response):
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", response.text)))


async def test_an_empty_list_says_how_to_begin(client):
    page = await client.get("/profiles")
    assert page.status_code == 200
    assert 'class="empty"' in page.text
    assert "/profiles/-/new" in page.text


async def test_the_list_shows_model_engine_and_the_active_revision(client, store, console, model):
    await store.create(chat(), author="ann")
    await client.post("/profiles/chat/activate", data={})
    await store.save("chat", chat(**{"max-num-seqs": 8}), base=1, author="ann")
    said = text_of(await client.get("/profiles"))
    for part in ("chat", "active r1", "Tiny", "native", "r2", "never launched"):
        assert part in said


async def test_the_form_has_a_labelled_and_described_field_for_every_setting(client, home, model):
    page = (await client.get("/profiles/-/new")).text
    for setting in SETTINGS:
        if setting.key == "schema":
            continue
        id_ = setting.key.replace(".", "-")
        assert f'<label for="setting-{id_}">' in page
        assert f'name="{setting.key}"' in page
        assert f'aria-describedby="help-{id_} note-{id_}"' in page
        assert f'id="help-{id_}"' in page
        assert f'id="note-{id_}"' in page
    assert '<option value="Tiny">' in page
    assert 'placeholder="256"' in page
    assert "aria-invalid" not in page


async def test_a_profile_is_made_edited_and_deleted(client, store, model):
    made = await client.post("/profiles/-/new", data=fields(chat(), base="0", note="hello"), follow_redirects=False)
    assert (made.status_code, made.headers["location"]) == (303, "/profiles/chat")
    assert "ingot-saved=-" in made.headers["set-cookie"]
    await client.post("/profiles/chat/edit", data=fields(chat(**{"max-num-seqs": 8})))
    history = await store.history("chat")
    assert [(r.number, r.author, r.note) for r in history.revisions] == [(2, "admin", ""), (1, "admin", "hello")]
    answer = await client.get("/profiles/chat")
    assert "r2" in text_of(answer)
    assert 'data-verdict="ready"' in answer.text
    gone = await client.post("/profiles/chat/delete", follow_redirects=False)
    assert gone.status_code == 303
    assert (await client.get("/profiles/chat")).status_code == 404


async def test_saving_without_a_change_says_so_and_makes_no_revision(client, store, model):
    await store.create(chat(), author="ann")
    page = await client.post("/profiles/chat/edit", data=fields(chat()))
    assert "chat r1" in text_of(page)
    assert (await store.revision("chat")).number == 1


@pytest.mark.parametrize(
    ("key", "typed", "remedy"),
    [
        ("max-num-seqs", "many", "at least 1 and at most 4,096"),
        ("max-num-seqs", "0", "Give a value of at least 1 and at most 4,096"),
        ("name", "Chat Room", "lower-case letters"),
        ("dtype", "int4", "one of: auto, float32"),
        ("kv-cache-memory-bytes", "2 parsecs", "KiB, MiB, GiB"),
        ("vllm.extra-args", "trust-remote-code: true", "Remove it"),
        ("vllm.extra-args", "host: 0.0.0.0", "Remove it"),
    ],
)
async def test_a_value_that_is_refused_is_named_with_its_remedy_and_kept_as_typed(
    client, store, model, key, typed, remedy
):
    await store.create(chat(), author="ann")
    page = await client.post("/profiles/chat/edit", data={**fields(chat(**{"max-num-batched-tokens": 77})), key: typed})
    assert page.status_code == 422
    assert remedy.split(" at least")[0] in text_of(page)
    assert typed.split(":")[0] in unescape(page.text)
    assert 'value="77"' in page.text
    assert 'aria-invalid="true"' in page.text
    assert (await store.revision("chat")).number == 1


async def test_a_name_twice_is_a_conflict_that_names_it_and_keeps_what_was_typed(client, store, model):
    await store.create(chat(), author="ann")
    page = await client.post("/profiles/-/new", data=fields(chat(**{"max-num-seqs": 9}), base="0"))
    assert page.status_code == 409
    assert 'data-conflict="name-taken"' in page.text
    assert 'value="9"' in page.text


async def test_saving_on_top_of_a_newer_revision_shows_whose_it_is_and_the_difference(client, store, model):
    await store.create(chat(), author="ann")
    await store.save("chat", chat(**{"max-num-seqs": 8}), base=1, author="bob", note="halved")
    mine = chat(**{"max-num-seqs": 9, "dtype": "float32"})
    page = await client.post("/profiles/chat/edit", data=fields(mine, note="mine"))
    assert page.status_code == 409
    said = text_of(page)
    assert 'data-conflict="newer-revision"' in page.text
    for part in ("bob", "halved", "max-num-seqs", "r2"):
        assert part in said
    assert 'value="9"' in page.text
    assert 'name="base" value="2"' in page.text
    again = await client.post("/profiles/chat/edit", data=fields(mine, base="2"), follow_redirects=False)
    assert again.status_code == 303
    assert (await store.revision("chat")).number == 3


async def test_two_saves_at_once_make_one_revision_and_one_conflict(at_once, store, model):
    await store.create(chat(), author="ann")
    answers = await at_once(*(("/profiles/chat/edit", fields(chat(**{"max-num-seqs": n}))) for n in (8, 9)))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    assert (await store.revision("chat")).number == 2


async def test_two_activations_at_once_are_one_and_one_conflict_that_names_it(at_once, store, model, control):
    await store.create(chat(), author="ann")
    await store.create({**chat(), "name": "talk"}, author="ann")
    answers = await at_once(*((f"/profiles/{name}/activate", {"revision": "1"}) for name in ("chat", "talk")))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    refused = next(answer for answer in answers if answer.status_code == 409)
    assert 'data-conflict="activation-running"' in refused.text
    assert re.search(r"(chat|talk) r1", text_of(refused))
    assert control.calls == ["restart"]


async def test_what_is_said_while_somebody_types(client, model):
    said = await client.post("/profiles/-/check", data=fields(chat(**{"max-num-seqs": 9000})), headers=HTMX)
    assert said.status_code == 200
    assert 'data-verdict="invalid"' in said.text
    assert re.search(r'id="note-max-num-seqs" data-wrong hx-swap-oob="true"', said.text)
    fine = await client.post("/profiles/-/check", data=fields(chat()), headers=HTMX)
    assert 'data-verdict="ready"' in fine.text
    assert 'data-fits="yes"' in fine.text
    gone = await client.post("/profiles/-/check", data=fields({"name": "a", "model": {"path": "Gone"}}), headers=HTMX)
    assert 'data-verdict="wont-start"' in gone.text


async def test_a_new_form_does_not_complain_before_anything_was_typed(client):
    said = await client.post("/profiles/-/check", data=fields({}), headers=HTMX)
    assert 'data-verdict="none"' in said.text
    refused = await client.post("/profiles/-/new", data=fields({}, base="0"))
    assert refused.status_code == 422
    assert "aria-invalid" in refused.text


async def test_fields_become_yaml_and_back(client, store, model):
    await store.create(chat(), author="ann")
    as_yaml = await client.post("/profiles/chat/edit", data=fields(chat(**{"max-num-seqs": 8}), show="yaml"))
    assert "max-num-seqs: 8" in unescape(as_yaml.text)
    assert 'name="view" value="yaml"' in as_yaml.text
    text = "name: chat\nmodel: {path: Tiny}\nmax-num-seqs: 9\n"
    back = await client.post("/profiles/chat/edit", data={"view": "yaml", "yaml": text, "base": "1", "show": "fields"})
    assert 'name="max-num-seqs" value="9"' in back.text
    unknown = text + "max-seqs: 3\n"
    stays = await client.post(
        "/profiles/chat/edit", data={"view": "yaml", "yaml": unknown, "base": "1", "show": "fields"}
    )
    assert 'class="callout callout-warn"' in stays.text
    assert "max-seqs: 3" in unescape(stays.text)
    assert (await store.revision("chat")).number == 1


@pytest.mark.parametrize("text", ["name: [", "- a list", "a: &x 1", "{", "name: chat\nname: chat", "x" * 300_000])
async def test_yaml_that_cannot_be_read_is_kept_and_explained(client, store, model, text):
    await store.create(chat(), author="ann")
    for wanted in ({}, {"show": "fields"}, {"patch": '{"dtype": "float32"}'}):
        page = await client.post("/profiles/chat/edit", data={"view": "yaml", "yaml": text, "base": "1", **wanted})
        assert page.status_code == 422
        assert text in unescape(page.text)
    live = await client.post("/profiles/-/check", data={"view": "yaml", "yaml": text}, headers=HTMX)
    assert live.status_code == 200


async def test_a_fix_is_applied_to_what_is_in_the_form(client, store, model):
    await store.create(chat(), author="ann")
    data = fields(chat(**{"max-num-seqs": 8}), patch=json.dumps({"dtype": "float16", "max-num-seqs": None}))
    page = await client.post("/profiles/chat/edit", data=data)
    assert '<option value="float16" selected>' in page.text
    assert 'name="max-num-seqs" value=""' in page.text
    assert (await store.revision("chat")).number == 1
    assert (await client.post("/profiles/chat/edit", data=fields(chat(), patch="[1]"))).status_code == 422


async def test_a_refused_activation_shows_what_was_found_and_how_to_go_on(client, store, control):
    await store.create({"name": "gone", "model": {"path": "Gone-7B"}}, author="ann")
    page = await client.post("/profiles/gone/activate", data={"revision": "1"})
    assert page.status_code == 422
    said = text_of(page)
    assert "gone r1" in said
    assert "Gone-7B" in said
    assert 'name="anyway"' not in page.text
    assert control.calls == []


async def test_an_override_is_offered_only_for_what_may_pass(client, store, control, monkeypatch):
    await store.create(chat(), author="ann")
    held = Finding(id="memory-held", severity=Severity.ERROR, message="No room.", transient=True)
    monkeypatch.setattr(Inspector, "preflight", lambda *_: [held])
    page = await client.post("/profiles/chat/activate", data={"revision": "1"})
    assert (page.status_code, 'name="anyway"' in page.text, control.calls) == (422, True, [])
    anyway = await client.post(
        "/profiles/chat/activate", data={"revision": "1", "anyway": "yes"}, follow_redirects=False
    )
    assert (anyway.status_code, control.calls) == (303, ["restart"])


@pytest.mark.parametrize("patch", [{"name": "evil"}, {"schema": 2}, {"max-model-len": 64, "name": None}])
async def test_a_fix_never_renames_a_profile(patch, client, store, control):
    await store.create({"name": "gone", "model": {"path": "Gone-7B"}}, author="ann")
    answer = await client.post("/profiles/gone/apply-fix", data={"revision": "r1", "patch": json.dumps(patch)})
    assert answer.status_code == 422
    assert (await store.revision("gone")).number == 1
    assert control.calls == []


async def test_a_fix_is_saved_on_top_and_activated(client, store, control, home, model):
    await store.create({"name": "gone", "model": {"path": "Gone-7B"}}, author="ann")
    data = {"revision": "r1", "patch": json.dumps({"model.path": "Tiny"})}
    done = await client.post("/profiles/gone/apply-fix", data=data, follow_redirects=False)
    assert (done.status_code, control.calls) == (303, ["restart"])
    saved = await store.revision("gone")
    assert (saved.number, saved.document["model"]["path"], saved.active) == (2, "Tiny", True)
    assert "r1 with the fix for model.path" in saved.note
    assert read_active(home).revision == "r2"


async def test_save_and_activate_is_one_click(client, store, control, home, model):
    data = fields(chat(), base="0", do="activate")
    done = await client.post("/profiles/-/new", data=data, follow_redirects=False)
    assert (done.status_code, done.headers["location"], control.calls) == (303, "/", ["restart"])
    assert "ingot-saved=-" in done.headers["set-cookie"]
    assert read_active(home).document["name"] == "chat"


async def test_rolling_back_without_a_good_launch_says_so(client, control):
    page = await client.post("/profiles/-/roll-back")
    assert page.status_code == 404


async def test_a_roll_back_that_preflight_refuses_shows_what_was_found(client, store, console, control):
    """The last good revision's model may be gone by now."""
    made = await store.create({"name": "gone", "model": {"path": "Gone-7B"}}, author="ann")
    async with console.database.session() as session:
        session.add(
            Launch(launch_id="one", profile="gone", revision="r1", state="stopped", started=made.created + 1,
                   ready_after_s=1.0, path="")
        )  # fmt: skip
    page = await client.post("/profiles/-/roll-back")
    assert page.status_code == 422
    assert "gone r1" in text_of(page)
    program = await client.post("/profiles/-/roll-back", headers={"Accept": "application/json"})
    assert (program.json()["profile"], program.json()["revision"]) == ("gone", 1)
    assert control.calls == []


async def test_the_active_profile_is_not_deleted(client, store, model):
    await store.create(chat(), author="ann")
    await client.post("/profiles/chat/activate", data={})
    page = await client.post("/profiles/chat/delete")
    assert page.status_code == 409
    assert "chat is active (r1) and cannot be deleted" in text_of(page)


async def test_revisions_are_compared_and_exported(client, store, model):
    await store.create(chat(), author="ann")
    await store.save("chat", chat(**{"max-num-seqs": 8}), base=1, author="ann")
    compared = text_of(await client.get("/profiles/chat/compare?before=1&after=2"))
    assert "max-num-seqs" in compared
    assert "Block size" not in compared
    assert "Block size" in text_of(await client.get("/profiles/chat/compare?before=1&after=2&everything=true"))
    exported = await client.get("/profiles/chat/export?kind=yaml&revision=2")
    assert exported.headers["content-disposition"] == 'attachment; filename="chat.r2.yaml"'
    assert "max-num-seqs: 8" in exported.text
    assert (await client.get("/profiles/chat/export?kind=json")).json()["max-num-seqs"] == 8
    for missing in (
        "/profiles/nope",
        "/profiles/chat/revisions/9",
        "/profiles/chat/compare?before=9",
        "/profiles/nope/export",
        f"/profiles/chat/revisions/{10**30}",
        f"/profiles/chat/compare?after={10**30}",
    ):
        assert (await client.get(missing)).status_code == 404
    for wrong in ("kind=exe", "format=xml"):
        assert (await client.get(f"/profiles/chat/export?{wrong}")).status_code == 422


async def test_an_import_is_looked_at_before_it_is_done(client, store, model):
    text = "name: chat\nmodel: {path: Tiny}\nmax-num-seqs: 8\n"
    dry = await client.post("/profiles/-/import", files={"pasted": (None, text)})
    assert "new profile" in text_of(dry)
    assert await store.summaries() == []
    confirm = {"source": (None, "the pasted text"), "text": (None, text), "confirmed": (None, "create chat 1")}
    done = await client.post("/profiles/-/import", files=confirm, follow_redirects=False)
    assert (done.status_code, done.headers["location"]) == (303, "/profiles/chat")
    stale = await client.post("/profiles/-/import", files=confirm)
    assert stale.status_code == 200
    assert "data-moved" in stale.text
    assert 'data-does="nothing"' in stale.text
    assert (await store.revision("chat")).number == 1


async def test_a_program_imports_with_json_answers(client, store, model):
    """The dry run, its problems and an empty request; what it confirms is then imported."""
    program = {"Accept": "application/json"}
    text = "name: chat\nmodel: {path: Tiny}\nmax-num-seqs: 8\n"
    dry = await client.post("/profiles/-/import", files={"pasted": (None, text)}, headers=program)
    assert dry.status_code == 200
    (planned,) = dry.json()["planned"]
    assert (planned["does"], planned["name"], planned["revision"]) == ("create", "chat", 1)
    bad = await client.post("/profiles/-/import", files={"pasted": (None, "name: Bad\n")}, headers=program)
    assert bad.status_code == 422
    assert {problem["field"] for problem in bad.json()["problems"]} >= {"name", "model.path"}
    empty = await client.post("/profiles/-/import", files={"pasted": (None, "")}, headers=program)
    assert (empty.status_code, empty.json()["field"]) == (422, "files")
    confirm = {"source": (None, "mine"), "text": (None, text), "confirmed": (None, planned["stamp"])}
    done = await client.post("/profiles/-/import", files=confirm, headers=program, follow_redirects=False)
    assert (done.status_code, done.headers["location"]) == (303, "/profiles/chat")
    again = await client.post("/profiles/-/import", files=confirm, headers=program)
    assert (again.json()["moved"], again.json()["planned"][0]["does"]) == (True, "nothing")


async def test_files_are_imported_and_bad_ones_explained_and_kept(client, store, model):
    files = [
        ("files", ("a.json", json.dumps(chat()).encode())),
        ("files", ("b.yaml", b"name: Bad\nmodel: {path: Tiny}\n")),
        ("files", ("c.yaml", b"\xff\xfe\x00")),
    ]
    page = await client.post("/profiles/-/import", files=files)
    assert page.status_code == 422
    said = text_of(page)
    for part in ("new profile", "b.yaml", "lower-case letters", "c.yaml", "not UTF-8"):
        assert part in said
    assert await store.summaries() == []
    assert (await client.post("/profiles/-/import", files={"pasted": (None, " ")})).status_code == 422


async def test_programs_with_the_console_token_get_json(visitor, store, home, model):
    home.create()
    ensure_console_token(home)
    await store.create({"name": "gone", "model": {"path": "Gone-7B"}}, author="ann")
    await store.create(chat(), author="ann")
    headers = {"Accept": "application/json", **program_header(home)}
    done = await visitor.post("/profiles/chat/activate", data={}, headers=headers)
    assert (done.status_code, done.json()["profile"], done.json()["restarted"]) == (200, "chat", True)
    refused = await visitor.post("/profiles/gone/activate", data={}, headers=headers)
    assert (refused.status_code, refused.json()["findings"][0]["id"]) == (422, "model-missing")
    missing = await visitor.post("/profiles/nope/activate", data={}, headers=headers)
    assert (missing.status_code, missing.json()["field"]) == (404, "name")
    for wrong in (b"Bearer nope", b"Bearer \xc3\xa9", b"Basic x", b"Bearer "):
        given = [(b"accept", b"application/json"), (b"authorization", wrong)]
        assert (await visitor.post("/profiles/chat/activate", data={}, headers=given)).status_code == 401


@pytest.mark.parametrize(
    ("pragma", "status", "said"),
    [("PRAGMA query_only = ON", 503, "ingot.db"), ("PRAGMA max_page_count = 1", 507, "ingot.db")],
)
async def test_a_database_that_cannot_be_written_loses_nothing(client, console, store, model, pragma, status, said):
    """The form that was sent comes back, to be sent again; the engine is not touched."""
    await store.create(chat(), author="ann")
    event.listen(console.database._engine.sync_engine, "connect", lambda connection, _: connection.execute(pragma))
    await console.database._engine.dispose()
    note = "long enough to need a page of its own: " + "x" * 20_000
    page = await client.post("/profiles/chat/edit", data=fields(chat(**{"max-num-seqs": 8}), note=note))
    assert page.status_code == status
    assert said in text_of(page)
    assert 'name="max-num-seqs" value="8"' in page.text


async def test_names_that_look_like_addresses_are_profiles_like_any_other(client, store, model):
    for name in ("new", "import", "check", "roll-back", "edit", "0"):
        await store.create({**chat(), "name": name}, author="ann")
        assert f"<h1>{name}" in (await client.get(f"/profiles/{name}")).text
        assert (await client.get(f"/profiles/{name}/edit")).status_code == 200


async def test_what_a_profile_holds_is_shown_as_text_never_as_markup(client, store):
    nasty = '<script>alert("1")</script>'
    await store.create({"name": "chat", "model": {"path": nasty}}, author=nasty, note=nasty)
    for path in (
        "/profiles",
        "/profiles/chat",
        "/profiles/chat/edit",
        "/profiles/chat/revisions/1",
        "/profiles/chat/compare",
    ):
        page = await client.get(path)
        assert page.status_code == 200
        assert "<script>alert" not in page.text
    refused = await client.post("/profiles/chat/activate", data={})
    assert "<script>alert" not in refused.text


async def test_every_page_needs_somebody_signed_in(visitor, store):
    for path in ("/profiles", "/profiles/chat", "/profiles/-/new", "/profiles/-/import", "/profiles/chat/export"):
        assert (await visitor.get(path, follow_redirects=False)).status_code == 303
    assert (await visitor.post("/profiles/-/new", data={})).status_code == 401
