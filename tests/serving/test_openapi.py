"""/openapi.json: a valid document, of every route, and true of what is answered."""

from __future__ import annotations

import threading
from typing import Any

import jsonschema
import pytest
from litestar import Litestar
from litestar.di import Provide
from litestar.routes import HTTPRoute
from litestar.testing import AsyncTestClient

from appliance.home import Home
from appliance.serving.access import Access
from appliance.serving.app import make_routes
from appliance.serving.front_door import FrontDoor
from appliance.serving.openapi import route
from appliance.serving.openapi.route import docs, openapi
from tests.supervisor.scripted import Door

HELLO = [{"role": "user", "content": "hello"}]
KEY = r"^[a-zA-Z0-9._-]+$"


def strict(required: list[str], /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def mapping(pattern: str, of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {pattern: of}, "additionalProperties": False}


TEXT = {"type": "string"}
SCHEMA = {"type": "object"}
CONTENT = mapping("^[a-z]+/[a-z-]+$", strict([], schema=SCHEMA))
SECURITY = {"type": "array", "items": mapping(KEY, {"type": "array"})}
PARAMETER = strict(
    ["name", "in", "required", "schema"],
    **{"name": TEXT, "in": {"enum": ["path", "query", "header"]}, "required": {"type": "boolean"}, "schema": SCHEMA},
)
OPERATION = strict(
    ["operationId", "summary", "responses"],
    operationId=TEXT,
    summary=TEXT,
    security=SECURITY,
    parameters={"type": "array", "items": PARAMETER},
    requestBody=strict(["content"], required={"type": "boolean"}, content=CONTENT),
    responses={
        **mapping("^[1-5][0-9][0-9]$", strict(["description"], description=TEXT, content=CONTENT)),
        "minProperties": 1,
    },
)
BEARER = strict(["type", "scheme"], type={"const": "http"}, scheme=TEXT, description=TEXT)
HEADER = strict(
    ["type", "in", "name"], **{"type": {"const": "apiKey"}, "in": {"const": "header"}}, name=TEXT, description=TEXT
)
# What OpenAPI 3.1's own schema says of all that our document uses.
OPENAPI = strict(
    ["openapi", "info", "paths"],
    openapi={"pattern": r"^3\.1\.\d+$"},
    info=strict(["title", "version"], title=TEXT, version=TEXT, description=TEXT),
    paths=mapping("^/", mapping("^(get|post|delete)$", OPERATION)),
    components=strict(
        [],
        schemas=mapping(KEY, SCHEMA),
        securitySchemes=mapping(KEY, {"oneOf": [BEARER, HEADER]}),
    ),
)


@pytest.fixture(scope="module")
def document(door: Door) -> dict[str, Any]:
    return dict(door.http.get("/openapi.json").json())


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(method, path): each for path, methods in document["paths"].items() for method, each in methods.items()}


def check(document: dict[str, Any], path: str, response: Any) -> None:
    """That an answer is what the document says of its route."""
    documented = document["paths"][path][response.request.method.lower()]["responses"][str(response.status_code)]
    kind = response.headers["content-type"].split(";")[0]
    schema = documented["content"][kind].get("schema", {})
    if kind == "application/json":
        jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(response.json())


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    """In its form, in its schemas and in its references."""
    jsonschema.Draft202012Validator(OPENAPI).validate(document)
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known
    assert not [name for name in document["components"]["schemas"] if "." in name]  # two structs of one name
    found = operations(document)
    ids = [operation["operationId"] for operation in found.values()]
    assert len(set(ids)) == len(ids)
    for (_, path), operation in found.items():
        in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert in_path == {part[1:-1] for part in path.split("/") if part.startswith("{")}
        assert all(
            scheme in document["components"]["securitySchemes"] for one in operation["security"] for scheme in one
        )


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(each) for each in value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_every_route_is_documented(home: Home) -> None:
    """With a summary, what it answers, and the struct of what it takes."""
    app = make_routes(FrontDoor(home), Access(home, "127.0.0.1"))
    handlers = [
        handler
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if handler.http_methods != {"OPTIONS"}
    ]
    assert handlers
    assert [each.handler_name for each in handlers if "answer" not in each.opt or not each.summary] == []
    assert [each.handler_name for each in handlers if "POST" in each.http_methods and "body" not in each.opt] == []


def test_keys_are_asked_for_where_the_document_says_so(door: Door, door_home: Home, document: dict[str, Any]) -> None:
    """And nowhere else."""
    door_home.api_keys.write_text('{"required": true, "keys": []}')
    try:
        for (method, path), operation in operations(document).items():
            with door.http.stream(method, path.replace("{", "").replace("}", "")) as response:
                assert (response.status_code == 401) == bool(operation["security"]), path
    finally:
        door_home.api_keys.unlink()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2, "return_token_ids": True}),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2, "logprobs": True, "top_logprobs": 2, "n": 2}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 2, "logprobs": 1, "return_token_ids": True}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 2, "top_logprobs": 1, "metadata": {"a": "b"}}),
    ],
)
def test_answers_and_refusals_are_as_documented(
    door: Door, document: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    """Also those of bodies that are nothing like a request."""
    good = door.http.post(path, json=body)
    assert good.status_code == 200, good.text
    check(document, path, good)
    bad: list[Any] = [{}, [], "x", {**body, "model": "other"}, {**body, "temperature": -1}]
    for wrong in bad:
        refused = door.http.post(path, json=wrong)
        assert refused.status_code in (400, 404)
        check(document, path, refused)
    streamed = door.http.post(path, json={**body, "stream": True})
    check(document, path, streamed)


@pytest.mark.parametrize("path", ["/health", "/metrics", "/appliance/state", "/v1/models", "/openapi.json", "/docs"])
def test_what_can_be_read_is_as_documented(door: Door, document: dict[str, Any], path: str) -> None:
    check(document, path, door.http.get(path))


def test_a_bad_host_is_documented_for_every_route(door: Door, document: dict[str, Any]) -> None:
    for (method, path), _ in operations(document).items():
        refused = door.http.request(method, path.replace("{", "").replace("}", ""), headers={"Host": "a b"})
        assert refused.status_code == 400
        check(document, path, refused)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/{name}"])
def test_models_are_as_documented_for_clients_of_either_api(door: Door, document: dict[str, Any], path: str) -> None:
    """Refusals too."""
    header = {"anthropic-version": "2023-06-01"}
    parameters = document["paths"][path]["get"]["parameters"]
    assert [each["name"] for each in parameters if each["in"] == "header"] == list(header)
    for headers in ({}, header):
        for name in ("tiny", "other") if "name" in path else ("",):
            response = door.http.get(path.replace("{name}", name), headers=headers)
            assert response.status_code == (404 if name == "other" else 200)
            check(document, path, response)


def test_a_key_may_be_sent_in_two_ways(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    allowed = [scheme for one in document["paths"]["/v1/messages"]["post"]["security"] for scheme in one]
    assert [schemes[scheme].get("name", "authorization") for scheme in allowed] == ["authorization", "x-api-key"]


def test_a_refused_method_comes_with_those_that_are_not(door: Door, document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        refused = door.http.put(path.replace("{", "").replace("}", ""))
        assert refused.status_code == 405
        assert {each.lower() for each in refused.headers["allow"].split(", ")} == {*methods, "options"}


def test_fields_that_are_always_refused_are_not_described(document: dict[str, Any]) -> None:
    described = document["components"]["schemas"]["ResponseFields"]["properties"]
    refused = {"max_tokens", "n", "response_format", "background", "conversation", "prompt"}
    assert refused.isdisjoint(described)
    assert {"max_output_tokens", "text", "input"} <= set(described)


def test_requests_are_described_by_the_structs_that_decode_them(document: dict[str, Any]) -> None:
    """With their types and limits."""
    schemas = document["components"]["schemas"]
    chat = schemas["ChatFields"]["properties"]
    assert chat["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert schemas["ChatFields"]["required"] == ["messages"]
    assert schemas["ResponseFields"]["required"] == ["input"]


def test_defaults_are_values_that_the_field_may_have(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["CompletionFields"]["properties"]["max_tokens"]["default"] == 16
    assert schemas["OllamaChatFields"]["properties"]["stream"]["default"] is True
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            if "default" in field:
                whole = {**field, "components": document["components"]}
                jsonschema.Draft202012Validator(whole).validate(field["default"])


async def test_the_document_is_built_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its page with it, beside the event loop: anybody may request them, as often as they like."""
    built = []

    def build(routes: Any) -> tuple[bytes, bytes]:
        built.append(threading.current_thread())
        return b'{"openapi": "3.1.0"}', b"<p>"

    monkeypatch.setattr(route, "_build", build)
    monkeypatch.setattr(FrontDoor, "on_vllm", False)
    front_door = FrontDoor(home)
    given = {"front_door": Provide(lambda: front_door, sync_to_thread=False)}
    app = Litestar([openapi, docs], dependencies=given, openapi_config=None)
    async with AsyncTestClient(app) as client:
        answers = [await client.get("/openapi.json") for _ in range(3)]
        page = await client.get("/docs")
    assert [answer.json() for answer in answers] == [{"openapi": "3.1.0"}] * 3
    assert answers[0].headers["content-type"] == "application/json"
    assert (page.text, page.headers["content-type"]) == ("<p>", "text/html; charset=utf-8")
    assert len(built) == 1
    assert built[0] is not threading.main_thread()
