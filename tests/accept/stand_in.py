"""A stand-in for a served model, which a test can spoil. A byte is a token, and the next one follows from all before
it; asked for an access code that the text holds, it gives it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from typing import Any

from tests.bench.stand_in import reply, stream

BEGIN = 256
FACT = re.compile(rb"The access code of (\S+) is (\d+)\.")
ASKED = re.compile(rb"The access code of (\S+) is$")
LETTERS = b"abcdefghijklmnopqrstuvwxyz     "


class Server(threading.Thread):
    """`spoilt` has the names of what is wrong with it; `refused` fields are answered with 400, and `absent` paths with
    404."""

    def __init__(self, *spoilt: str, refused: tuple[str, ...] = (), absent: tuple[str, ...] = ()) -> None:
        super().__init__(daemon=True)
        self.spoilt, self.refused, self.absent = set(spoilt), set(refused), set(absent)
        self.model: dict[str, Any] = {
            "id": "m", "max_model_len": 1024, "digest": "sha256:1", "dtype": "float32", "device": "cpu",
        }  # fmt: skip
        self.state: dict[str, Any] = {
            "state": "ready", "version": "1", "launch": {"id": "one", "profile": "p", "engine": "native"},
        }  # fmt: skip
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.pause_s = 0.0
        self.in_flight = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()

    def run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ended = asyncio.Event()
        self._listening.set()
        async with server:
            await self._ended.wait()

    def __enter__(self) -> Server:
        self.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self.join(10)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.keys.add(head.partition("authorization: ")[2].partition("\r\n")[0])
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            body = json.loads(await reader.readexactly(length) or b"{}")
            path = head.split()[1]
            if path in self.absent:
                reply(writer, 404, {"error": {"message": "no such path"}})
            elif refused := sorted(self.refused & body.keys()):
                reply(writer, 400, {"error": {"message": f"{refused[0]} is not supported"}})
            elif path == "/metrics":
                self._metrics(writer)
            elif path == "/tokenize":
                special = [BEGIN] if body.get("add_special_tokens", True) else []
                reply(writer, 200, {"tokens": [*special, *body["prompt"].encode()]})
            elif path == "/v1/models":
                reply(writer, 200, {"data": [self.model]})
            elif path == "/appliance/state":
                reply(writer, 200, self.state)
            elif path.endswith("/completions"):
                await self._complete(writer, body)
            else:
                reply(writer, 404, None)
            await writer.drain()
        writer.close()

    def _metrics(self, writer: asyncio.StreamWriter) -> None:
        running = 3 if "leak" in self.spoilt and len(self.bodies) > 40 else 0
        text = f"ingot:num_requests_running {running}\ningot:num_requests_waiting 0\n".encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text)

    async def _complete(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        self.in_flight += 1
        try:
            await asyncio.sleep(self.pause_s)
            if "down" in self.spoilt and len(self.bodies) > 40:
                self.absent |= {"/appliance/state", "/v1/completions"}
            if "restart" in self.spoilt and len(self.bodies) > 40:
                self.state["launch"] = {**self.state["launch"], "id": "two"}
            if "stuck" in self.spoilt and len(self.bodies) > 60 and len(self.bodies) % 10 == 0:
                await asyncio.sleep(30)
            await self._write(writer, body)
        finally:
            self.in_flight -= 1

    async def _write(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        prompt = self._prompt(body)
        generated = self._generated(body, prompt)
        text = bytes(generated).decode()
        finish = "length"
        for stop in body.get("stop") or []:
            if stop in text and "goes-on" not in self.spoilt:
                text, finish = text[: text.index(stop)], "stop"
                generated = generated[: len(text)]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(generated)}
        if "messages" in body:
            form, calls = self._form(body)
            message: dict[str, Any] = {"role": "assistant", "content": None if calls else form or text}
            if calls:
                message["tool_calls"] = calls
            choice = {"message": message, "finish_reason": "stop" if form or calls else finish}
        else:
            shown = (bytes(prompt[1:] if prompt[0] == BEGIN else prompt).decode(errors="replace"), prompt)
            echoed, ids = (shown[0] + text, [*prompt, *generated]) if body.get("echo") else (text, generated)
            choice = {"text": echoed, "finish_reason": finish}
            if "logprobs" in body:
                choice["logprobs"] = self._logprobs(body, prompt, ids)
        if not body.get("stream"):
            reply(writer, 200, {"choices": [choice], "usage": usage})
            return
        if "message" in choice:
            choice["delta"] = choice.pop("message")
        events: list[dict[str, Any]] = [{"choices": [choice]}]
        if "stream_options" in body:
            events.append({"choices": [], "usage": usage})
        if "cut" in self.spoilt and len(self.bodies) % 7 == 0:
            events = [{"choices": [{**choice, "finish_reason": None}]}]
        await stream(writer, events)

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        prompt = body["prompt"] if "prompt" in body else json.dumps(body["messages"])
        return prompt if isinstance(prompt, list) else [BEGIN, *prompt.encode()]

    def _generated(self, body: dict[str, Any], prompt: list[int]) -> list[int]:
        raw = bytes(token for token in prompt if token != BEGIN)
        made: list[int] = []
        if (asked := ASKED.search(raw)) and "forgets" not in self.spoilt:
            known = dict(FACT.findall(raw))
            made = [*b" ", *known.get(asked[1], b""), *b"."]
        state = _state(prompt)
        if "load" in self.spoilt and self.in_flight > 1:
            state += 1  # other requests change the answer
        if "cache" in self.spoilt and self.bodies.count(body) > 1:
            state, made = state + 1, []
        while len(made) < body["max_tokens"]:
            made.append(_next(state))
            state = _state([made[-1]], state)
        return made[: body["max_tokens"]]

    def _logprobs(self, body: dict[str, Any], prompt: list[int], ids: list[int]) -> dict[str, Any]:
        by_id = body.get("return_tokens_as_token_ids")
        first = 0 if body.get("echo") else len(prompt)
        names = [f"token_id:{each}" if by_id else chr(each) for each in ids]
        logprobs: list[Any] = []
        tops: list[Any] = []
        for place, (name, token) in enumerate(zip(names, ids, strict=True), first):
            if not place:
                logprobs.append(None)
                tops.append(None)
                continue
            value = -0.1 - (token * 7 + place) % 50 / 1000
            other = "token_id:1" if by_id else "\x01"
            logprobs.append(value)
            tops.append({name: value, other: value - 3})
        return {"tokens": names, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": [0] * len(ids)}

    def _form(self, body: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        form = json.dumps({"colour": "pink" if "schema" in self.spoilt else "red", "count": 3, "sure": True})
        if "tools" in body:
            name = body["tools"][0]["function"]["name"]
            return "", [{"index": 0, "id": "c", "type": "function", "function": {"name": name, "arguments": form}}]
        return (form if "response_format" in body else ""), []


def _state(tokens: list[int], state: int = 7) -> int:
    for token in tokens:
        state = (state * 1_000_003 + token + 1) % (1 << 31)
    return state


def _next(state: int) -> int:
    return LETTERS[(state >> 8) % len(LETTERS)]
