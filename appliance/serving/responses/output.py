"""The output of one answer: its items as they grow, and the events that tell a stream of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from appliance.serving.choice import Choice, Piece
from appliance.serving.parsers.base import CallDelta
from appliance.serving.responses.items import Item, new_item_id, output_text

Event = dict[str, Any]
Logprobs = list[dict[str, Any]]


class Output:
    """Reasoning, messages and calls, in the order in which the model writes them."""

    def __init__(self) -> None:
        self._written: list[_Text | _Call] = []
        self._logprobs: Logprobs = []  # of tokens whose text has not come yet

    @property
    def items(self) -> list[Item]:
        return [each.item for each in self._written]

    def add(self, piece: Piece, logprobs: Logprobs) -> Iterator[Event]:
        """`logprobs` are those of the piece's tokens, of which the first may be reasoning, which shows none."""
        self._logprobs = logprobs[piece.reasoned :] if piece.reasoned else [*self._logprobs, *logprobs]
        if piece.reasoning:
            yield from self._write("reasoning", piece.reasoning, [])
        if piece.text:
            yield from self._write("message", piece.text, self._logprobs)
        if piece.text or piece.calls:
            self._logprobs = []
        for call in piece.calls:
            if call.name is not None:
                yield from self._begin(_Call(len(self._written), call))
            yield from self._written[-1].push(call.arguments, [])

    def finish(self, choice: Choice, *, complete: bool) -> Iterator[Event]:
        """An answer has a message, though it may be empty, or calls. The last item is as complete as the answer."""
        kind = self._written[-1].item["type"] if self._written else ""
        if complete and kind in ("", "reasoning"):
            yield from self._begin(_Text(len(self._written), "message"))
        if self._written:
            whole = complete and (kind != "function_call" or choice.called)
            yield from self._written[-1].end("completed" if whole else "incomplete", self._logprobs)

    def _write(self, kind: str, text: str, logprobs: Logprobs) -> Iterator[Event]:
        if not self._written or self._written[-1].item["type"] != kind:
            yield from self._begin(_Text(len(self._written), kind))
        yield from self._written[-1].push(text, logprobs)

    def _begin(self, item: _Text | _Call) -> Iterator[Event]:
        if self._written:
            yield from self._written[-1].end("completed", [])
        self._written.append(item)
        yield from item.begin()


class _Text:
    """An item with one part: a message, or reasoning."""

    def __init__(self, index: int, kind: str) -> None:
        self._text = ""
        self._logprobs: Logprobs = []
        of_kind: Item = {"role": "assistant"} if kind == "message" else {"summary": []}
        self.item: Item = {"id": new_item_id(kind), "type": kind, "status": "in_progress", "content": [], **of_kind}
        self._part_kind = "output_text" if kind == "message" else "reasoning_text"
        self._item_place = {"output_index": index}
        self._place = {"item_id": self.item["id"], **self._item_place, "content_index": 0}

    def begin(self) -> Iterator[Event]:
        yield {"type": "response.output_item.added", **self._item_place, "item": dict(self.item)}
        yield {"type": "response.content_part.added", **self._place, "part": self._part()}

    def push(self, text: str, logprobs: Logprobs) -> Iterator[Event]:
        self._text += text
        self._logprobs += logprobs
        yield {**self._event("delta"), "delta": text, **self._with(logprobs)}

    def end(self, status: str, logprobs: Logprobs) -> Iterator[Event]:
        """`logprobs` are those of the last tokens, which have no text, such as the one that ends the answer."""
        self._logprobs += logprobs
        self.item |= {"status": status, "content": [self._part()]}
        yield {**self._event("done"), "text": self._text, **self._with(self._logprobs)}
        yield {"type": "response.content_part.done", **self._place, "part": self._part()}
        yield {"type": "response.output_item.done", **self._item_place, "item": dict(self.item)}

    def _event(self, what: str) -> Event:
        return {"type": f"response.{self._part_kind}.{what}", **self._place}

    def _with(self, logprobs: Logprobs) -> dict[str, Logprobs]:
        return {"logprobs": logprobs} if self._part_kind == "output_text" else {}

    def _part(self) -> dict[str, Any]:
        if self._part_kind == "output_text":
            return {**output_text(self._text), "logprobs": self._logprobs}
        return {"type": self._part_kind, "text": self._text}


class _Call:
    def __init__(self, index: int, call: CallDelta) -> None:
        self.item: Item = {
            "id": new_item_id("function_call"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": call.id or f"call_{secrets.token_hex(12)}",
            "name": call.name,
            "arguments": "",
        }
        self._item_place = {"output_index": index}
        self._place = {"item_id": self.item["id"], **self._item_place}

    def begin(self) -> Iterator[Event]:
        yield {"type": "response.output_item.added", **self._item_place, "item": dict(self.item)}

    def push(self, text: str, _logprobs: Logprobs) -> Iterator[Event]:
        if text:
            self.item["arguments"] += text
            yield {"type": "response.function_call_arguments.delta", **self._place, "delta": text}

    def end(self, status: str, _logprobs: Logprobs) -> Iterator[Event]:
        self.item["status"] = status
        arguments = {"arguments": self.item["arguments"], "name": self.item["name"]}
        yield {"type": "response.function_call_arguments.done", **self._place, **arguments}
        yield {"type": "response.output_item.done", **self._item_place, "item": dict(self.item)}
