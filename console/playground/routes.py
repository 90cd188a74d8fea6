"""The playground: a chat with the model that runs."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream, Template

from appliance.profile.schema import BUNDLED_MODEL
from console.pages import page
from console.parts import Folder, PageRequest, Profiles, TheFollower
from console.playground.inputs import INPUTS
from console.playground.proxy import Unreachable, ask, error_body

FIRST_QUESTIONS = (
    "How do I import a model?",
    "What does sealed mean?",
    "Why must models be inside the models folder?",
    "What is a launch?",
)
"""What the bundled model has good answers to."""

OTHER_QUESTIONS = (
    "What can you help me with?",
    "Explain tensor parallelism in three sentences.",
    "Write a haiku about casting metal.",
)


@get("/playground")
async def playground(request: PageRequest, profiles: Profiles) -> Template:
    active = await profiles.active()
    document = active.document if active is not None else {}
    bundled = document.get("model", {}).get("path") == BUNDLED_MODEL
    given = document.get("sampling-defaults", {})
    return page(
        request,
        "playground/playground.html",
        title="Playground",
        questions=FIRST_QUESTIONS if bundled else OTHER_QUESTIONS,
        inputs=INPUTS,
        defaults={name.replace("-", "_"): f"{value:g}" for name, value in given.items()},
    )


@post("/playground/chat", status_code=200)
async def chat(request: PageRequest, home: Folder, follower: TheFollower) -> Stream | Response[dict[str, Any]]:
    """A request as the front door's /v1/chat/completions takes it; the answer is the front door's, whatever it says."""
    try:
        answer = await ask(follower.client, home, await request.body())
    except Unreachable:
        return Response(error_body("The engine is not running."), status_code=502)
    return Stream(
        answer.pieces(),
        status_code=answer.status,
        media_type=answer.media_type,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


route_handlers: list[HTTPRouteHandler] = [playground, chat]
