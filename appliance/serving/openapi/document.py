"""The document: every route with what it takes, what it answers, and its errors.

Its router's `opt` says who may call a route (`access`), and its own the rest: `body` is the struct that decodes its
request, `answer` the struct of its answer, or the media type where that has none, `streams` whether it may come as
events, or the other media type that it then has, `error` the struct of its errors where that is not OpenAI's,
`errors` the statuses that are its own, `other_answers` those that come with another struct than errors do, and
`headers` those of a request that change the answer. `answer` and `error` may be several structs, of which one comes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.routes import BaseRoute, HTTPRoute

from appliance import __version__
from appliance.serving.openapi.answers import Error
from appliance.serving.openapi.defaults import DEFAULTS
from appliance.serving.responses import fields as responses

ERRORS: Final = {
    400: "The request is not valid (`param` names the field), or the Host header is not a valid address.",
    401: "A key is required, or this one is not valid.",
    403: "A web page of another site sent the request without a key.",
    404: "There is nothing of this name.",
    409: "There is one of this id already.",
    413: "The request is too large.",
    415: "The body has a Content-Encoding.",
    422: "Preflight refuses the profile; the launch that it would have been.",
    429: "The queue is full; try again later.",
    500: "The front door failed.",
    501: "Not with `engine: vllm`.",
    502: "The engine ended during the answer.",
    503: "The engine is not ready.",
}
SECURITY: Final[dict[str, list[dict[str, list[str]]]]] = {
    "key": [{"apiKey": []}, {"apiKeyHeader": []}, {}],  # unless a key is required, none will do
    "console": [{"consoleToken": []}],
    "anybody": [],
}
DENIALS: Final = {"key": (401, 403), "console": (401,), "anybody": ()}
SCHEMES: Final = {
    "apiKey": {"type": "http", "scheme": "bearer", "description": "Created on the console's Access page."},
    "apiKeyHeader": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
    "consoleToken": {"type": "http", "scheme": "bearer", "description": "The console's own."},
}
# Of a handler's arguments, those that are no parameters of the request's address.
OWN_ARGUMENTS: Final = frozenset({"request", "front_door"})

# Fields that a struct has only to refuse them with a reason.
REFUSED: Final = {"ResponseFields": (*responses.UNSUPPORTED, *responses.MISPLACED)}

Schema = dict[str, Any]


def openapi_document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    handlers = sorted(_handlers(routes), key=lambda each: each[0])
    structs = sorted({Error, *(struct for _, each in handlers for struct in _structs(each))}, key=_name)
    references, components = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    for name, fields in REFUSED.items():
        for field in fields:
            components.get(name, {}).get("properties", {}).pop(field, None)
    for struct, defaults in DEFAULTS.items():
        for field, default in defaults.items():
            components[_name(struct)]["properties"][field]["default"] = default
    schemas = dict(zip(structs, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for path, handler in handlers:
        (method,) = handler.http_methods
        paths.setdefault(path, {})[method.lower()] = _operation(path, handler, schemas)
    about = "The front door of the native engine. With `engine: vllm`, vLLM answers under /v1 itself."
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ingot", "version": __version__, "description": about},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SCHEMES},
    }


def _handlers(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, HTTPRouteHandler]]:
    """With their paths; without the framework's own answers to OPTIONS."""
    for route in routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            if "answer" in handler.opt:
                yield route.path_format, handler


def _structs(handler: HTTPRouteHandler) -> Iterator[Any]:
    opt = handler.opt
    for given in (opt.get("body"), opt["answer"], opt.get("error")):
        yield from (struct for struct in _several(given) if isinstance(struct, type))
    yield from opt.get("other_answers", {}).values()


def _several(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)


def _schema(given: Any, schemas: dict[Any, Schema]) -> Schema:
    """Of a struct, or of one of several."""
    found = [schemas[struct] for struct in _several(given)]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _name(struct: Any) -> str:
    return str(struct.__name__)


def _operation(path: str, handler: HTTPRouteHandler, schemas: dict[Any, Schema]) -> dict[str, Any]:
    opt, access = handler.opt, handler.opt.get("access", "anybody")
    parameters = list(_parameters(path, handler))
    errors = {400, 500, *DENIALS[access], *opt.get("errors", ())}
    operation: dict[str, Any] = {
        "operationId": handler.handler_name,
        "summary": handler.summary,
        "security": SECURITY[access],
        "parameters": parameters,
    }
    if body := opt.get("body"):
        errors |= {413, 415}
        operation["requestBody"] = {"required": True, "content": _json(schemas[body])}
    others = {status: schemas[struct] for status, struct in opt.get("other_answers", {}).items()}
    failures = dict.fromkeys(errors, _schema(opt.get("error", Error), schemas)) | others
    operation["responses"] = {
        str(handler.status_code): {"description": "The answer.", "content": _answer(opt, schemas)},
        **{
            str(status): {"description": ERRORS[status], "content": _json(schema)}
            for status, schema in sorted(failures.items())
        },
    }
    return operation


def _parameters(path: str, handler: HTTPRouteHandler) -> Iterator[dict[str, Any]]:
    in_path = re.findall(r"\{(\w+)\}", path)
    text = {"schema": {"type": "string"}}
    yield from ({"name": name, "in": "path", "required": True, **text} for name in in_path)
    for name in handler.opt.get("headers", ()):
        yield {"name": name, "in": "header", "required": False, **text}
    for name in handler.parsed_fn_signature.parameters:
        if name not in OWN_ARGUMENTS and name not in in_path:
            yield {"name": name, "in": "query", "required": False, **text}


def _answer(opt: dict[str, Any], schemas: dict[Any, Schema]) -> dict[str, Any]:
    answer = opt["answer"]
    content = {answer: {}} if isinstance(answer, str) else _json(_schema(answer, schemas))
    streams = opt.get("streams", False)
    media_type = streams if isinstance(streams, str) else "text/event-stream"
    # Of no type: some read it as that of the whole text, and some as that of each event.
    return {**content, media_type: {"schema": {"contentMediaType": media_type}}} if streams else content


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
