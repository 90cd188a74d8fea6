"""Harmony, the format of gpt-oss: messages, each with a header that says its channel and to whom it goes.

`<|start|>assistant<|channel|>analysis<|message|>...<|end|>`: the channel `analysis` is reasoning, `final` is content,
and so is `commentary`, which prefaces calls. A call is `<|channel|>commentary to=functions.NAME
<|constrain|>json<|message|>{...}<|call|>`, with the recipient at times before the channel. `<|return|>` ends the last
message. The prompt ends with `<|start|>assistant`, so the first header lacks that.

Source: OpenAI's "harmony response format", and the chat template of gpt-oss.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from appliance.serving.parsers.base import Delta, OutputParser, Section, Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.markers import markers
from appliance.serving.parsers.reader import Ended, Malformed, Steps

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CALL, _CONSTRAIN = "<|call|>", "<|constrain|>"
_END: Final = "<|end|>"
_ENDS: Final = (_END, "<|return|>", _CALL)
_HEADS: Final = markers(_START, _CHANNEL)
_STOPS: Final = markers(*_ENDS, _START, _CHANNEL)
_WORD: Final = re.compile(r"[A-Za-z0-9_.:/-]*")
_RECIPIENT: Final = "to="
_MOST_WORDS: Final = 2  # of a header, beside channel and recipient


class HarmonyParser(JsonCallParser):
    """Messages go through as they are; those of one kind are kept apart by a line's end. Text without a header is
    content; a header that the end of the answer cuts off is not. Without `calls`, a message to a tool is content, with
    its header; without `separate`, so is reasoning."""

    def __init__(self, tools: Sequence[Tool] = (), *, calls: bool = True, separate: bool = True) -> None:
        self._takes_calls = calls
        self._separate = separate
        self._reasoning: list[str] = []
        self._begun: set[str] = set()
        super().__init__(tools, {_START: "", _CHANNEL: ""})

    def _run(self) -> Steps[None]:
        marker = ""
        while True:
            try:
                marker = yield from self._message(marker)
            except Ended:
                if self._named:
                    self.begin()
                self.commit()
                marker = ""
            except Malformed:
                marker = ""
            self._named = None
            if not marker:
                self._content.append("".join(self.reader.record))
                self.commit()
                marker = yield from self.reader.read_until(_HEADS, self._content.append)
                if not marker:
                    return

    def _message(self, marker: str) -> Steps[str]:
        """A message whose header begins with `marker`, which has been read; with "", the first. Returns the marker of
        the next header, if that ends it."""
        reader = self.reader
        channel, recipient = yield from self._header(bool(marker))
        if recipient:
            if not self._takes_calls:
                raise Malformed
            self.name(recipient.removeprefix("functions."))
            yield from self._call_arguments()
            return ""
        self.commit()
        reasoning = self._separate and channel == "analysis"
        sink = self._reasoning.append if reasoning else self._content.append
        kind = "reasoning" if reasoning else "content"
        if kind in self._begun:
            sink("\n")
        self._begun.add(kind)
        stop = yield from reader.read_until(_STOPS, sink)
        if stop in _ENDS:
            self.commit()
            yield from reader.skip_space()
            return (yield from reader.accept(_START, _CHANNEL))
        return stop

    def _header(self, marked: bool) -> Steps[tuple[str, str]]:
        """The channel and the recipient. What else is said is the role, and the kind of the message."""
        reader = self.reader
        channel = recipient = ""
        others = _MOST_WORDS if marked else 0
        if marked and self.reader.record[-1] == _CHANNEL:
            channel = yield from reader.read_while(_WORD)
        while True:
            yield from reader.skip_space()
            token = yield from reader.accept(_MESSAGE, _CHANNEL, _CONSTRAIN, _RECIPIENT)
            if token == _MESSAGE:
                return channel, recipient
            word = yield from reader.read_while(_WORD)
            if token == _CHANNEL:
                channel, others = word, _MOST_WORDS
            elif token == _RECIPIENT:
                recipient, others = word, _MOST_WORDS
            elif not token:
                others -= 1
                if marked and not (yield from reader.peek()):
                    raise Ended
                if not word or others < 0:
                    raise Malformed

    def _call_arguments(self) -> Steps[None]:
        reader = self.reader
        if (yield from reader.skip_space()) == "{":
            yield from self.object_arguments()
            yield from reader.skip_space()
            if (yield from reader.accept(*_ENDS)):
                self.commit()
        else:
            yield from reader.expect(_CALL)
            self.begin("{}")

    def _delta(self) -> Delta:
        delta = super()._delta()
        delta.reasoning = "".join(self._reasoning)
        self._reasoning.clear()
        return delta


@dataclass
class HarmonyReasoning:
    """Harmony's parser reads both reasoning and calls, so this replaces the parser that it would otherwise wrap."""

    name: str = "gpt-oss"
    pairs: Mapping[str, str] = field(default_factory=dict)
    keeps_special: bool = True
    interleaved: bool = True
    calls_within: tuple[str, ...] = ()

    @property
    def sections(self) -> Sequence[Section]:
        begin = f"{_CHANNEL}analysis{_MESSAGE}"
        final = f"{_END}{_START}assistant{_CHANNEL}final{_MESSAGE}"
        return [Section(begin, (*_ENDS, _START, _CHANNEL), _END, final)]

    def opened_by(self, prompt: str) -> bool:
        return False

    def parser(self, inner: OutputParser, *, opened: bool = False, separate: bool = True) -> OutputParser:
        """`opened` makes no difference: headers say what is reasoning."""
        tools = inner.tools.values() if isinstance(inner, HarmonyParser) else None
        return HarmonyParser(tuple(tools or ()), calls=tools is not None, separate=separate)


HARMONY = Format("gpt-oss", HarmonyParser, keeps_special=True)
