"""A stand-in for a server of OpenAI's API that generates at once: one event a token, in HTTP chunks that cut through
lines. It counts a word as a token."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

CHUNK = 50  # bytes; an event is longer
MODELS = {"object": "list", "data": [{"id": "m", "max_model_len": 4096}]}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request, then the connection is closed."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = head.partition("content-length: ")[2].partition("\r\n")[0]
    body = json.loads(await reader.readexactly(int(length or 0)) or b"{}")
    if "/v1/models" in head:
        reply(writer, 200, MODELS)
    elif "completions" in head:
        await respond(writer, body)
    else:
        reply(writer, 404, None)
    writer.close()


def reply(writer: asyncio.StreamWriter, status: int, content: Any, headers: str = "") -> None:
    body = json.dumps(content).encode()
    writer.write(f"HTTP/1.1 {status} X\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body)


async def respond(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    if not body.get("stream"):
        reply(writer, 200, {})
        return
    events = [event(body, " word")] * body["max_tokens"]
    if "messages" in body:
        events.insert(0, event(body, ""))  # the role
    prompt = body.get("prompt") or body["messages"][-1]["content"]
    words = len(prompt.split() if isinstance(prompt, str) else prompt)
    if "stream_options" in body:
        usage = {"prompt_tokens": words, "completion_tokens": body["max_tokens"]}
        events.append({"choices": [], "usage": usage})
    await stream(writer, events)


def event(body: dict[str, Any], text: str) -> dict[str, Any]:
    choice: dict[str, Any] = {"text": text} if "prompt" in body else {"delta": {"content": text}}
    return {"choices": [choice], "usage": None}


async def stream(writer: asyncio.StreamWriter, events: list[dict[str, Any]], wait_s: float = 0) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    lines = [f"data: {json.dumps(each)}\n\n" for each in events] + ["data: [DONE]\n\n"]
    for text in lines if wait_s else ["".join(lines)]:
        await asyncio.sleep(wait_s)
        for at in range(0, len(text), CHUNK):
            part = text[at : at + CHUNK]
            writer.write(f"{len(part):x}\r\n{part}\r\n".encode())
            await writer.drain()
    writer.write(b"0\r\n\r\n")


async def main(port: int) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[sys.argv.index("--port") + 1])))
