"""`GET /live?topic=strip&topic=log:20261120-095145-3f2a@1200`: the one stream of a page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from litestar import get
from litestar.params import FromQuery
from litestar.response import Stream

from console.errors import Refusal
from console.live.hub import Hub
from console.parts import TheHub

TOPIC_LIMIT = 16


@get("/live")
async def live(hub: TheHub, topic: FromQuery[list[str]]) -> Stream:
    """Server-sent events, one `event:` name a topic. `@` after a feed's name gives the position to continue after."""
    if len(topic) > TOPIC_LIMIT:
        raise Refusal(422, f"{len(topic)} topics were asked for; a page may have {TOPIC_LIMIT}.", field="topic")
    wanted = {name: position for name, _, position in (item.partition("@") for item in topic)}
    return Stream(
        _frames(hub, wanted),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _frames(hub: Hub, wanted: dict[str, str]) -> AsyncIterator[bytes]:
    yield b": open\n\n"
    async for message in hub.listen(wanted):
        if message is None:
            yield b": still here\n\n"
            continue
        lines = [f"event: {message.topic}", f"id: {message.position}"]
        lines += [f"data: {line}" for line in message.data.split("\n")]
        yield ("\n".join(lines) + "\n\n").encode()


route_handlers = [live]
