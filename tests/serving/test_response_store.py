"""Answers that are kept: bounded, forgotten in order of use, and known to their owner only."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from appliance.home import Home
from appliance.serving.errors import ApiError
from appliance.serving.responses.store import MAX_REFERENCED_BYTES, ResponseStore, StoredItems, StoredResponse
from tests.serving.talking_door import talking_door
from tests.supervisor.scripted import Door

ANSWERS = ["It rains.", "Until tomorrow.", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>']
RAIN, TOMORROW, CALL = range(3)
TOOLS: Any = [{"type": "function", "name": "f", "parameters": None, "strict": None}]


def stored(name: str, size: int = 0) -> StoredResponse:
    output = [{"id": f"msg_{name}", "type": "message", "text": "x" * size}]
    return StoredResponse({"id": name, "output": output}, [{"id": f"in_{name}"}])


def known(store: ResponseStore, owner: str, *names: str) -> list[str]:
    found = []
    for name in names:
        with contextlib.suppress(ApiError):
            found.append(store.get(owner, name).response["id"])
    return found


def test_what_was_used_last_is_kept() -> None:
    """A look counts as use."""
    store = ResponseStore(2)
    store.keep("", stored("a"))
    store.keep("", stored("b"))
    store.get("", "a")
    store.keep("", stored("c"))
    assert known(store, "", "a", "b", "c") == ["a", "c"]
    store.resize(1)
    assert known(store, "", "a", "c") == ["c"]


def test_memory_is_bounded() -> None:
    """Not even one that is larger than all may be is kept, and room is given back."""
    store = ResponseStore(100, most_bytes=1000)
    for name in "abc":
        store.keep("", stored(name, 400))
    assert known(store, "", "a", "b", "c") == ["b", "c"]
    store.keep("", stored("d", 2000))
    assert known(store, "", "b", "c", "d") == []
    store.keep("", stored("e", 600))
    store.delete("", "e")
    store.keep("", stored("f", 600))
    assert known(store, "", "e", "f") == ["f"]


def test_an_owner_finds_no_others_answers() -> None:
    """Neither to read nor to delete, nor an item of one."""
    store = ResponseStore(10)
    store.keep("one", stored("a"))
    for look in (store.get, store.delete, lambda owner, name: StoredItems(store, owner).item(name, "id")):
        for name in ("a", "msg_a"):
            with pytest.raises(ApiError):
                look("two", name)
    assert StoredItems(store, "one").item("msg_a", "id")["type"] == "message"
    assert StoredItems(store, "one").item("in_a", "id") == {"id": "in_a"}
    store.delete("one", "a")
    with pytest.raises(ApiError):
        StoredItems(store, "one").item("msg_a", "id")


def test_a_request_decodes_each_answer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And has each item once, however often it refers to it."""
    store = ResponseStore(10)
    for name in "ab":
        store.keep("", stored(name, 1000))
    decoded = []
    get = ResponseStore.get

    def counting(*args: Any) -> StoredResponse:
        decoded.append(args[2])
        return get(*args)

    monkeypatch.setattr(ResponseStore, "get", counting)
    items = StoredItems(store, "")
    found = [items.item(f"msg_{name}", "id") for name in "ab" * 100]
    assert decoded == ["a", "b"]
    assert len({id(item) for item in found}) == 2


def test_what_a_request_refers_to_is_bounded() -> None:
    """As is the request itself; the item that is one too many is named."""
    store = ResponseStore(10)
    store.keep("", stored("a", MAX_REFERENCED_BYTES // 3))
    items = StoredItems(store, "")
    for index in range(2):
        items.item("msg_a", f"input[{index}].id")
    with pytest.raises(ApiError) as refused:
        items.item("msg_a", "input[2].id")
    assert (refused.value.status, refused.value.param) == (400, "input[2].id")


@pytest.fixture(scope="module")
def keeping_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.at(tmp_path_factory.mktemp("keeping") / "home").create()


@pytest.fixture(scope="module")
def keeping(keeping_home: Home) -> Iterator[Door]:
    with talking_door(keeping_home, ANSWERS, **{"response-store": 20, "tool-call-parser": "hermes"}) as door:
        door.wait("ready")
        yield door


@pytest.fixture
def client(keeping: Door) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{keeping.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_from_what_was_kept(client: openai.OpenAI, stream: bool) -> None:
    """As if all of it had been sent; instructions are of one answer only."""

    def ask(said: Any, seed: int, **body: Any) -> Any:
        given = {"model": "tiny", "input": said, "tools": TOOLS, "extra_body": {"seed": seed}, **body}
        if not stream:
            return client.responses.create(**given)
        with client.responses.stream(**given) as opened:
            return opened.get_final_response()

    first = ask("Go", CALL, instructions="Be brief.")
    (call,) = [item for item in first.output if item.type == "function_call"]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    second = ask([result], RAIN, previous_response_id=first.id)
    third = ask("How long?", TOMORROW, previous_response_id=second.id)
    assert third.previous_response_id == second.id
    whole = ask(
        [
            {"role": "user", "content": "Go"},
            *(item.model_dump(exclude_none=True) for item in first.output),
            result,
            *(item.model_dump(exclude_none=True) for item in second.output),
            {"role": "user", "content": "How long?"},
        ],
        TOMORROW,
    )
    assert third.usage.input_tokens == whole.usage.input_tokens
    referred = ask(
        [
            {"role": "user", "content": "Go"},
            {"type": "item_reference", "id": call.id},
            result,
            *({"type": "item_reference", "id": item.id} for item in second.output),
            {"role": "user", "content": "How long?"},
        ],
        TOMORROW,
    )
    assert referred.usage.input_tokens == whole.usage.input_tokens


def test_what_is_kept_can_be_read_and_deleted(client: openai.OpenAI) -> None:
    """The answer as it was, and its input, page by page."""
    sent: Any = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    made = client.responses.create(model="tiny", input=sent, extra_body={"seed": RAIN})
    assert made.store is True  # type: ignore[attr-defined]
    assert client.responses.retrieve(made.id).model_dump() == made.model_dump()
    texts = [item.content[0].text for item in client.responses.input_items.list(made.id, limit=2)]  # type: ignore[union-attr]
    assert texts == ["three", "two", "one"]
    page = client.responses.input_items.list(made.id, limit=2, order="asc")
    assert [item.content[0].text for item in page.data] == ["one", "two"]  # type: ignore[union-attr]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="tiny", input="x", previous_response_id=made.id)
    assert refused.value.param == "previous_response_id"


def test_a_request_may_ask_not_to_be_kept(client: openai.OpenAI) -> None:
    """And the answer says so."""
    made = client.responses.create(model="tiny", input="x", store=False, extra_body={"seed": RAIN})
    assert made.store is False  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=101",
        "limit=x",
        "limit=0000000500",
        f"limit=5{'0' * 5000}",
        "limit=٣",
        "order=up",
        "after=msg_0",
    ],
)
def test_a_wrong_page_is_refused(client: openai.OpenAI, keeping: Door, query: str) -> None:
    """By the name of the parameter."""
    made = client.responses.create(model="tiny", input="x", extra_body={"seed": RAIN})
    response = keeping.http.get(f"/v1/responses/{made.id}/input_items?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, query.split("=")[0])


def test_a_stream_of_what_has_ended_is_refused(client: openai.OpenAI, keeping: Door) -> None:
    """There is nothing to resume."""
    made = client.responses.create(model="tiny", input="x", extra_body={"seed": RAIN})
    response = keeping.http.get(f"/v1/responses/{made.id}?stream=true")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "stream")


def test_a_key_finds_no_answers_of_another(keeping: Door, keeping_home: Home) -> None:
    """Over HTTP, whichever way it asks."""
    digests = {key: hashlib.sha256(key.encode()).hexdigest() for key in ("one", "two")}
    rows = [{"id": key, "name": key, "sha256": digest} for key, digest in digests.items()]
    keeping_home.api_keys.write_text(json.dumps({"required": True, "keys": rows}))
    try:
        one, two = ({"Authorization": f"Bearer {key}"} for key in digests)
        body: dict[str, Any] = {"input": "x", "seed": RAIN}
        made = keeping.http.post("/v1/responses", json=body, headers=one).json()
        address = f"/v1/responses/{made['id']}"
        for method, path in (("GET", address), ("GET", f"{address}/input_items"), ("DELETE", address)):
            assert keeping.http.request(method, path, headers=two).status_code == 404
        body["previous_response_id"] = made["id"]
        assert keeping.http.post("/v1/responses", json=body, headers=two).status_code == 400
        assert keeping.http.post("/v1/responses", json=body, headers=one).status_code == 200
    finally:
        keeping_home.api_keys.unlink()
