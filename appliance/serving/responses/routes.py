"""`/v1/responses`: answers to items, and those that are kept."""

from __future__ import annotations

import re
from typing import Any

from litestar import Request, delete, get, post
from litestar.params import FromPath, FromQuery

from appliance.serving.access import key_of
from appliance.serving.answering import Answering
from appliance.serving.body import read_body
from appliance.serving.errors import ApiError, bad_request
from appliance.serving.fields import read_fields
from appliance.serving.openapi.answers import DeletedResponse, InputItems, ResponseObject
from appliance.serving.parts import TheFrontDoor
from appliance.serving.respond import GENERATING, Answered, respond
from appliance.serving.responses.answer import ResponseAnswer
from appliance.serving.responses.fields import ResponseFields, check_fields
from appliance.serving.responses.items import Item
from appliance.serving.responses.request import in_terms_of_responses, response_ask

MAX_LISTED = 100


@post(
    "/v1/responses",
    status_code=200,
    summary="Answer items",
    body=ResponseFields,
    answer=ResponseObject,
    streams=True,
    errors=GENERATING,
)
async def create_response(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Answered:
    client, model = front_door.serving()
    body = await read_body(request)
    fields, ignored = await read_fields(body, ResponseFields, strict=model.strict_requests)
    model.check_name(fields.model)
    check_fields(fields, ignored)
    owner, store = key_of(request), front_door.responses
    try:
        asked = await response_ask(body, fields, model, store, owner, ignored)
        answering = Answering(client, model, front_door.metrics, asked.ask, owner)
    except ApiError as error:
        raise in_terms_of_responses(error) from None
    answer = ResponseAnswer(model, asked, store, owner)
    return await respond(request, answering, answer, stream=fields.stream, headers=ignored.headers)


@get("/v1/responses/{response_id:str}", summary="A kept answer", answer=ResponseObject, errors=(404,))
async def show_response(
    request: Request[Any, Any, Any], front_door: TheFrontDoor, response_id: FromPath[str], stream: FromQuery[str] = ""
) -> dict[str, Any]:
    if stream.lower() not in ("", "0", "false"):
        raise bad_request("stream: an answer that is kept has ended; remove stream.", "stream", "unsupported_field")
    return front_door.responses.get(key_of(request), response_id).response


@delete(
    "/v1/responses/{response_id:str}",
    status_code=200,
    summary="Forget a kept answer",
    answer=DeletedResponse,
    errors=(404,),
)
async def delete_response(
    request: Request[Any, Any, Any], front_door: TheFrontDoor, response_id: FromPath[str]
) -> dict[str, Any]:
    front_door.responses.delete(key_of(request), response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@get(
    "/v1/responses/{response_id:str}/input_items",
    summary="What a kept answer follows",
    answer=InputItems,
    errors=(404,),
)
async def list_input_items(
    request: Request[Any, Any, Any],
    front_door: TheFrontDoor,
    response_id: FromPath[str],
    after: FromQuery[str] = "",
    limit: FromQuery[str] = "20",
    order: FromQuery[str] = "desc",
) -> dict[str, Any]:
    """The newest first, unless `order` is asc."""
    items = front_door.responses.get(key_of(request), response_id).input
    if order not in ("asc", "desc"):
        raise bad_request(f"order: {order[:20]!r} is not valid; use asc or desc.", "order")
    most = int(limit) if re.fullmatch("[0-9]{1,3}", limit) else 0
    if not 1 <= most <= MAX_LISTED:
        raise bad_request(f"limit: {limit[:20]!r} is not valid; use 1 to {MAX_LISTED}.", "limit")
    listed = _after(items if order == "asc" else items[::-1], after)
    page = listed[:most]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": "", "last_id": ""}
    return {"object": "list", "data": page, **ends, "has_more": len(page) < len(listed)}


def _after(items: list[Item], item_id: str) -> list[Item]:
    if not item_id:
        return items
    for index, item in enumerate(items):
        if item["id"] == item_id:
            return items[index + 1 :]
    raise bad_request(f"after: this answer has no item {item_id[:100]!r}.", "after")
