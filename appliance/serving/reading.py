"""Reads an answer's text into content, reasoning and tool calls, in the formats of the served model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from appliance.profile.parser_names import AUTO
from appliance.serving.parsers.base import Delta, OutputParser, ReasoningFormat, ToolFormat
from appliance.serving.parsers.listed import LISTED
from appliance.serving.parsers.plain import PlainParser
from appliance.serving.tools import ToolUse

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.profile.schema import Profile


class Reading(NamedTuple):
    """How the answers to one request are read."""

    make_parser: Callable[[], OutputParser]
    keeps_special: bool
    """Whether some of the formats' markers are special tokens."""
    parallel: bool

    def reader(self) -> AnswerReader:
        return AnswerReader(self.make_parser(), parallel=self.parallel)


class ModelFormats(NamedTuple):
    """How the served model writes calls and reasoning; None where it writes none, or where they stay text."""

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None

    @classmethod
    def choose(cls, profile: Profile, family: str, template: str | None) -> ModelFormats:
        """The profile's, or else by what the template contains, or else by the model's family."""
        # Late: the first answer over HTTP does not wait for these.
        from appliance.serving.parsers.registry import FORMATS, REASONING, format_for, reasoning_for

        tools, reasoning = profile.tool_call_parser, profile.reasoning_parser
        return cls(
            format_for(family, template) if tools == AUTO else FORMATS.get(tools),
            reasoning_for(family, template) if reasoning == AUTO else REASONING.get(reasoning),
        )

    @classmethod
    def of_folder(cls, profile: Profile, folder: Path) -> ModelFormats:
        """Of a model that is not served yet. Blocking. Raises CheckpointError."""
        from appliance.checkpoint.chat_format import load_chat_format  # late, as above
        from appliance.checkpoint.config import read_config

        template = load_chat_format(folder, profile.chat_encoding)
        return cls.choose(profile, read_config(folder).model_type, template.text if template else None)

    def thoughts(self, prompt: str) -> list[tuple[str | None, str]]:
        """What begins the reasoning that may come before the answer, None where the prompt has; and what ends it."""
        if self.reasoning is None:
            return []
        if self.reasoning.opened_by(prompt):
            return [(None, end) for end in list(self.reasoning.pairs.values())[:1]]
        return list(self.reasoning.pairs.items())

    def reading(self, prompt: str, use: ToolUse) -> Reading | None:
        """None where nothing has to be read: an answer is content as it stands."""
        tools = LISTED if use.enforced else self.tools if use.callable else None
        # A grammar has no room for what is written around each message.
        headers = use.enforced and self.reasoning is not None and not self.reasoning.pairs
        reasoning = None if headers else self.reasoning
        if tools is None and reasoning is None:
            return None
        opened = reasoning is not None and reasoning.opened_by(prompt)

        def make_parser() -> OutputParser:
            inner = PlainParser() if tools is None else tools.parser(use.bound if use.enforced else use.callable)
            return inner if reasoning is None else reasoning.parser(inner, opened=opened)

        keeps_special = any(format_ is not None and format_.keeps_special for format_ in (tools, reasoning))
        return Reading(make_parser, keeps_special, use.parallel)


class AnswerReader:
    """One answer, token by token. `full`: it has all the calls that it may have, and nothing after them is read.
    `reasons`: the last token was reasoning, or is held back behind some."""

    def __init__(self, parser: OutputParser, *, parallel: bool) -> None:
        self.full = False
        self.reasoning_tokens = 0
        self._parser = parser
        self._parallel = parallel
        self.reasons = False
        self._last_call = -1
        self._arguments: list[str] = []

    def push(self, text: str, *, special: bool = False, of_token: bool = True) -> Delta:
        """What a token's text adds, or what was held back. That of a special token which is no marker adds nothing."""
        delta = self._taken(self._parser.push(text)) if text else Delta()
        if special:
            delta.content = delta.content.removesuffix(text)
            delta.reasoning = delta.reasoning.removesuffix(text)
        if delta:
            self.reasons = bool(delta.reasoning) and not delta.content and not delta.calls
        # The text of a token may come later: then it is counted with what came before.
        self.reasoning_tokens += self.reasons and of_token
        return delta

    def finish(self) -> Delta:
        return Delta() if self.full else self._taken(self._parser.finish())

    @property
    def called(self) -> bool:
        """Whether the answer has calls, of which the last is complete too."""
        return self._last_call >= 0 and _is_object("".join(self._arguments))

    def _taken(self, delta: Delta) -> Delta:
        for position, call in enumerate(delta.calls):
            if call.index > self._last_call:
                if self._last_call >= 0 and not self._parallel:
                    self.full = True
                    delta.calls = delta.calls[:position]
                    break
                self._last_call = call.index
                self._arguments.clear()
            self._arguments.append(call.arguments)
        return delta


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
