"""Reasoning that stands between two markers, apart from the rest of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from appliance.serving.parsers import dsml, kimi_k2, minimax_m2
from appliance.serving.parsers.base import Delta, OutputParser, Section
from appliance.serving.parsers.calls import CallParser
from appliance.serving.parsers.harmony import HarmonyReasoning
from appliance.serving.parsers.markers import markers
from appliance.serving.parsers.reader import SPACE, Reader, Steps


@dataclass
class MarkedReasoning:
    """A ReasoningFormat with markers."""

    name: str
    pairs: Mapping[str, str]
    keeps_special: bool = False
    interleaved: bool = False
    calls: tuple[str, ...] = field(default=())
    """Markers of calls, one of which ends reasoning too: the model calls without having ended it. It may end it behind
    them."""
    calls_within: tuple[str, ...] = field(default=())

    @property
    def sections(self) -> Sequence[Section]:
        return [Section(begin, (end, *self.calls), end) for begin, end in self.pairs.items()]

    def opened_by(self, prompt: str) -> bool:
        return prompt.rstrip(SPACE).endswith(tuple(begin.rstrip(SPACE) for begin in self.pairs))

    def parser(self, inner: OutputParser, *, opened: bool = False, separate: bool = True) -> OutputParser:
        return ReasoningParser(self, inner, opened, separate)


class ReasoningParser:
    """Reasoning, and an inner parser for the rest of the answer.

    White space beside the markers is dropped with them. Reasoning whose end never comes goes up to the end of the
    answer. Where the prompt has opened it, a marker that the model repeats is dropped. Of interleaved reasoning, a
    marker within a call is a part of the call.
    """

    def __init__(self, format_: MarkedReasoning, inner: OutputParser, opened: bool, separate: bool) -> None:
        self._format = format_
        self._inner = inner
        self._opened = opened
        self._separate = separate
        self._reader = Reader()
        self._reasoning: list[str] = []
        self._deltas: list[Delta] = []
        self._space: list[str] = []
        self._over = False
        """Whether no reasoning can come any more."""
        self._steps = self._run()
        next(self._steps)

    def push(self, text: str) -> Delta:
        if self._over:
            return self._inner.push(text)
        if text:
            self._reader.feed(text)
            next(self._steps, None)
        return self._delta()

    def finish(self) -> Delta:
        self._reader.ended = True
        for _ in self._steps:
            raise AssertionError("a parser waits for text behind the end of the answer")
        self._deltas.append(self._inner.finish())
        return self._delta()

    def _run(self) -> Steps[None]:
        reader, begins = self._reader, tuple(self._format.pairs)
        yield from reader.skip_space()
        begin = yield from reader.accept(*begins)
        if begin or self._opened:
            yield from self._reason(begin or begins[0])
        else:
            self._pass_record()
        if not self._format.interleaved:
            self._over = True
            self._pass(reader.unread)
            return
        while begin := (yield from reader.read_until(markers(*begins), self._pass)):
            if isinstance(self._inner, CallParser) and self._inner.in_call:
                self._pass_record()
            else:
                yield from self._reason(begin)

    def _reason(self, begin: str) -> Steps[None]:
        """Behind the marker `begin`, which is still in the record."""
        reader, end = self._reader, self._format.pairs[begin]
        yield from reader.skip_space()
        self._drop_record()
        sink = self._think if self._separate else self._show
        stop = yield from reader.read_until(markers(end, *self._format.calls), sink)
        if stop in self._format.calls:
            self._pass_record()
            self._space.clear()
            yield from self._end_behind_calls(end)
        elif stop:
            yield from reader.skip_space()
            self._drop_record()
        else:
            self._reasoning += self._space
        self._space.clear()

    def _end_behind_calls(self, end: str) -> Steps[None]:
        """What comes is no reasoning any more, and its end no content. Within a call, it is a part of the call."""
        reader = self._reader
        while (yield from reader.read_until(markers(end), self._pass)):
            if not (isinstance(self._inner, CallParser) and self._inner.in_call):
                self._drop_record()
                return
            self._pass_record()

    def _think(self, text: str) -> None:
        words = text.rstrip(SPACE)
        if words:
            self._reasoning += self._space
            self._reasoning.append(words)
            self._space.clear()
        if len(words) < len(text):
            self._space.append(text[len(words) :])

    def _show(self, text: str) -> None:
        """Content that does not go through the inner parser."""
        self._deltas.append(Delta(content=text))

    def _pass(self, text: str) -> None:
        self._deltas.append(self._inner.push(text))

    def _pass_record(self) -> None:
        self._pass("".join(self._reader.record))
        self._reader.record.clear()

    def _drop_record(self) -> None:
        """What is only markup."""
        if not self._separate:
            self._show("".join(self._reader.record))
        self._reader.record.clear()

    def _delta(self) -> Delta:
        deltas = self._deltas
        if len(deltas) == 1 and not self._reasoning:
            return deltas.pop()
        reasoning = "".join([*self._reasoning, *(delta.reasoning for delta in deltas)])
        content = "".join(delta.content for delta in deltas)
        calls = [call for delta in deltas for call in delta.calls]
        self._reasoning.clear()
        deltas.clear()
        return Delta(reasoning, content, calls)


_THINK: Final = {"<think>": "</think>"}

THINK = MarkedReasoning("think", _THINK)
"""Qwen3 to 3.5, DeepSeek R1 and V3.1, GLM-4.5 to 5, Nemotron, Granite 3.3 and 4, Hermes 4: from their chat templates.
The markers are added tokens, but not special ones."""
DSML = MarkedReasoning("dsml", _THINK, keeps_special=True, calls=dsml.MARKERS)
"""DeepSeek V3.2 and V4, which also call from within their reasoning."""
KIMI_K2 = MarkedReasoning("kimi-k2", _THINK, keeps_special=True, calls=kimi_k2.SECTIONS)
"""Kimi K2 Thinking, which also calls from within its reasoning (vLLM's kimi_k2 reasoning parser)."""
KIMI = MarkedReasoning("kimi", {"◁think▷": "◁/think▷"}, keeps_special=True)
"""Kimi-VL Thinking: its model card."""
MINIMAX_M2 = MarkedReasoning("minimax-m2", _THINK, interleaved=True, calls_within=minimax_m2.MARKERS)
"""MiniMax-M2: its model card speaks of interleaved thinking; its chat template opens the first."""
MISTRAL = MarkedReasoning("mistral", {"[THINK]": "[/THINK]"}, keeps_special=True)
"""Magistral since 1.1 and its successors: mistral-common's tokenizer v13."""
GRANITE = MarkedReasoning(
    "granite",
    _THINK
    | {
        "Here is my thought process:": "Here is my response:",
        "Here's my thought process:": "Here's my response:",
    },
)
"""Granite 3.2, in words; its successors in tags. Source: their chat templates and vLLM's granite reasoning parser."""
GEMMA4 = MarkedReasoning("gemma4", {"<|channel>thought\n": "<channel|>"}, keeps_special=True)
"""Gemma 4: its chat template and the response schema of its tokenizer."""
HARMONY = HarmonyReasoning()
