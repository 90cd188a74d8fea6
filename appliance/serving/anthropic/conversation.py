"""Anthropic's messages, which consist of blocks, as those that templates know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from appliance.serving.errors import ApiError, bad_request, missing
from appliance.serving.field_origins import FieldOrigins
from appliance.serving.fields import Ignored, decode_part, shown
from appliance.serving.messages import MAX_MESSAGES

ROLES: Final = ("user", "assistant", "system")
# Claude Code's, with a number that changes at each request: no prefix of its prompts would be found in the cache.
BILLING: Final = "x-anthropic-billing-header:"
# Most templates take a system's message at the head only. Later ones go to the user's turn, in the form that Claude
# Code gives such remarks there.
REMINDER: Final = "<system-reminder>\n{}\n</system-reminder>"
FAILED: Final = ("error", "<tool_use_error>")
# Between the texts of one turn; citations cut an assistant's into blocks.
BETWEEN: Final = {"assistant": ""}
# Each takes a few tokens at least, as messages do.
MAX_BLOCKS: Final = MAX_MESSAGES


class Message(msgspec.Struct, frozen=True, kw_only=True):
    role: Any = None
    content: Any = None


class Text(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    text: str
    cache_control: dict[str, Any] | None = None
    citations: list[Any] | None = None


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    id: Any = None
    name: Any = None
    input: dict[str, Any]
    cache_control: dict[str, Any] | None = None
    caller: dict[str, Any] | None = None


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    tool_use_id: str
    content: Any = None
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    thinking: str
    signature: str | None = None


class RedactedThinking(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    data: str | None = None


class Conversation:
    """Messages as /v1/chat/completions takes them: turns of the same role that follow each other are one, as Anthropic
    has it, and a tool's result is a message of its own."""

    def __init__(self, origins: FieldOrigins, ignored: Ignored) -> None:
        self._turns: list[dict[str, Any]] = []  # whose content and reasoning are lists of texts
        self._num_blocks = 0
        self._origins = origins
        self._ignored = ignored
        self._origin = ""  # of the message that is being added
        self._read: dict[str, dict[str, Callable[[dict[str, Any], str], None]]] = {
            "user": {"text": self._user_text, "tool_result": self._result},
            "assistant": {
                "text": self._assistant_text,
                "tool_use": self._call,
                "thinking": self._thinking,
                "redacted_thinking": self._redacted,
            },
            "system": {"text": self._system_text},
        }

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [_message(turn) for turn in self._turns]

    def add_system(self, system: str | list[dict[str, Any]] | None) -> None:
        """The field of that name."""
        if system:
            self._add_blocks("system", system, "system")

    def add(self, given: dict[str, Any], param: str) -> None:
        """Raises ApiError naming the part of the message, whose path is `param`."""
        message = decode_part(given, Message, param, self._ignored)
        if message.role is None:
            raise missing(f"{param}.role")
        if message.role not in ROLES:
            known = f"{', '.join(ROLES[:-1])} or {ROLES[-1]}"
            raise bad_request(f"{param}.role: {shown(message.role)} is not supported; use {known}.", f"{param}.role")
        self._add_blocks(message.role, message.content, f"{param}.content")

    def _add_blocks(self, role: str, content: Any, param: str) -> None:
        self._origin = param.removesuffix(".content")
        blocks = self._blocks(content, param)
        if not blocks and role != "system":
            self._turn(role)
        # A result follows its call; what the user says comes after it.
        for index, block in sorted(enumerate(blocks), key=lambda each: each[1].get("type") != "tool_result"):
            place = param if isinstance(content, str) else f"{param}[{index}]"
            kind = block.get("type")
            if kind is None:
                raise missing(f"{place}.type")
            read = self._read[role].get(kind) if isinstance(kind, str) else None
            if read is None:
                raise _unsupported(role, kind, f"{place}.type")
            read(block, place)

    def _turn(self, role: str) -> dict[str, Any]:
        """The message that the last one of this role goes on in."""
        if not self._turns or self._turns[-1]["role"] != role:
            self._origins.add(f"messages[{len(self._turns)}]", self._origin)
            self._turns.append({"role": role, "content": []})
        return self._turns[-1]

    def _say(self, role: str, text: str) -> None:
        self._turn(role)["content"].append(text)

    def _text(self, block: dict[str, Any], param: str) -> str:
        return decode_part(block, Text, param, self._ignored).text

    def _user_text(self, block: dict[str, Any], param: str) -> None:
        self._say("user", self._text(block, param))

    def _assistant_text(self, block: dict[str, Any], param: str) -> None:
        self._say("assistant", self._text(block, param))

    def _system_text(self, block: dict[str, Any], param: str) -> None:
        text = self._text(block, param)
        if not text or text.startswith(BILLING):
            return
        if self._turns and self._turns[-1]["role"] != "system":
            self._say("user", REMINDER.format(text))
        else:
            self._say("system", text)

    def _call(self, block: dict[str, Any], param: str) -> None:
        use = decode_part(block, ToolUse, param, self._ignored)
        calls = self._turn("assistant").setdefault("tool_calls", [])
        place = f"messages[{len(self._turns) - 1}].tool_calls[{len(calls)}]"
        self._origins.add(place, param)
        self._origins.add(f"{place}.function", param)
        calls.append({"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.input}})

    def _thinking(self, block: dict[str, Any], param: str) -> None:
        thinking = decode_part(block, ThinkingBlock, param, self._ignored).thinking
        self._turn("assistant").setdefault("reasoning_content", []).append(thinking)

    def _redacted(self, block: dict[str, Any], param: str) -> None:
        """Nobody here can read it."""
        decode_part(block, RedactedThinking, param, self._ignored)
        self._turn("assistant")

    def _result(self, block: dict[str, Any], param: str) -> None:
        result = decode_part(block, ToolResult, param, self._ignored)
        text = self._result_text(result.content, f"{param}.content")
        if result.is_error and not text.lower().startswith(FAILED):
            text = f"Error: {text}"
        self._origins.add(f"messages[{len(self._turns)}].tool_call_id", f"{param}.tool_use_id")
        self._origins.add(f"messages[{len(self._turns)}]", param)
        self._turns.append({"role": "tool", "tool_call_id": result.tool_use_id, "content": [text]})

    def _result_text(self, content: Any, param: str) -> str:
        texts = []
        for index, block in enumerate(self._blocks("" if content is None else content, param)):
            place = f"{param}[{index}]"
            if block.get("type") is None:
                raise missing(f"{place}.type")
            if block["type"] != "text":
                raise _unsupported("tool_result", block.get("type"), f"{place}.type")
            texts.append(self._text(block, place))
        return "\n".join(texts)

    def _blocks(self, content: Any, param: str) -> list[dict[str, Any]]:
        """Raises ApiError also where there are too many in the whole request."""
        blocks = _blocks(content, param)
        self._num_blocks += len(blocks)
        if self._num_blocks > MAX_BLOCKS:
            many = f"{param}: with these, the request has {self._num_blocks:,} blocks; send {MAX_BLOCKS:,} or fewer."
            raise bad_request(f"{many} Remove the oldest, or join some.", param)
        return blocks


def _message(turn: dict[str, Any]) -> dict[str, Any]:
    message = {**turn, "content": _joined(turn["content"], BETWEEN.get(turn["role"], "\n"))}
    if "reasoning_content" in turn:
        message["reasoning_content"] = _joined(turn["reasoning_content"], "\n")
    return message


def _joined(texts: list[str], between: str) -> str:
    return between.join(text for text in texts if text)


def _blocks(content: Any, param: str) -> list[dict[str, Any]]:
    """Text alone stands for one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if content is None:
        raise missing(param)
    if not isinstance(content, list):
        raise bad_request(f"{param}: {shown(content)} is not valid; use a string or a list of blocks.", param)
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            place = f"{param}[{index}]"
            raise bad_request(f"{place}: {shown(block)} is not valid; use an object with type.", place)
    return content


def _unsupported(within: str, kind: Any, param: str) -> ApiError:
    known = {
        "user": "text or tool_result",
        "assistant": "text, tool_use, thinking or redacted_thinking",
        "system": "text",
        "tool_result": "text",
    }[within]
    message = f"{param}: {shown(kind)} is not supported here; use {known}, as the engine takes text only."
    return bad_request(message, param, "unsupported_content")
