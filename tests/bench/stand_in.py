"""A stand-in for `vllm serve` that generates at once: one event a token, in HTTP chunks that cut through lines."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

CHUNK = 50  # bytes; an event is longer


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = head.partition("content-length: ")[2].partition("\r\n")[0]
    body = json.loads(await reader.readexactly(int(length or 0)) or b"{}")
    await respond(writer, body) if "/v1/completions" in head else refuse(writer)
    writer.close()


def refuse(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnull")


async def respond(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    if not body.get("stream"):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        return
    events: list[dict[str, Any]] = [{"choices": [{"text": " word"}], "usage": None}] * body["max_tokens"]
    events += [{"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}]
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for at in range(0, len(lines), CHUNK):
        part = lines[at : at + CHUNK]
        writer.write(f"{len(part):x}\r\n{part}\r\n".encode())
        await writer.drain()
    writer.write(b"0\r\n\r\n")


async def main(port: int) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[sys.argv.index("--port") + 1])))
