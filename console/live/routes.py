"""`GET /live?topic=strip&topic=log:20261120-095145-3f2a@1200`: the one stream of a page."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from litestar import get
from litestar.params import FromQuery
from litestar.response import Stream

from console.access.program import PROGRAM
from console.access.sessions import is_open
from console.live.hub import Hub
from console.parts import PageRequest, TheHub
from console.refusals import Refusal

TOPIC_LIMIT = 16
ASK_EVERY_S = 10.0


@get("/live")
async def live(request: PageRequest, hub: TheHub, topic: FromQuery[list[str]]) -> Stream:
    """Server-sent events, one `event:` name a topic. `@` after a feed's name gives the position to continue after."""
    if len(topic) > TOPIC_LIMIT:
        raise Refusal(422, f"{len(topic)} topics were requested; the limit is {TOPIC_LIMIT}.", field="topic")
    wanted = {name: position for name, _, position in (item.partition("@") for item in topic)}
    database, session_id = request.app.state.console.database, request.user.session_id

    async def allowed() -> bool:
        return request.user == PROGRAM or await is_open(database, session_id)

    return Stream(
        frames(hub, wanted, allowed),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def frames(hub: Hub, wanted: dict[str, str], allowed: Callable[[], Awaitable[bool]]) -> AsyncGenerator[bytes]:
    """The stream's bytes. It ends within `ASK_EVERY_S` once the browser that opened it has been signed out."""
    yield b": open\n\n"
    asked = time.monotonic()
    async with aclosing(hub.listen(wanted)) as messages:
        async for message in messages:
            if time.monotonic() - asked > ASK_EVERY_S:
                asked = time.monotonic()
                if not await allowed():
                    return
            if message is None:
                yield b"event: alive\ndata:\n\n"
                continue
            lines = [f"event: {message.topic}", f"id: {message.position}"]
            lines += [f"data: {line}" for line in message.data.split("\n")]
            yield ("\n".join(lines) + "\n\n").encode()


route_handlers = [live]
