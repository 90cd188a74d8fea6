"""The least that any server adds to a first token: a connection that stays open, and an answer that is there already.
What a front door takes beyond this is its own.

It prints its address, and ends with whoever started it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

from tests.bench.stand_in import event, stream

ASKED: dict[str, Any] = {"messages": []}
USAGE: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
ANSWER = [event(ASKED, ""), event(ASKED, "fox"), USAGE]


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Every request of a connection: a stream of one token."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the client has hung up
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            body = await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
            json.loads(body)
            await stream(writer, ANSWER)
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
