"""What the parsers of all formats share: content with tool calls in it, and what becomes of what is no call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.serving.parsers.base import CallDelta, Delta, OutputParser, Tool
from appliance.serving.parsers.markers import Markers
from appliance.serving.parsers.reader import SPACE, Ended, Malformed, Reader, Steps

if TYPE_CHECKING:
    from appliance.serving.parsers.shapes import Shapes


@dataclass
class Format:
    """A ToolFormat: its parser is made of the tools of a request."""

    name: str
    make: Callable[[Sequence[Tool]], OutputParser]
    keeps_special: bool = False
    shapes: Shapes | None = None

    def parser(self, tools: Sequence[Tool]) -> OutputParser:
        return self.make(tools)


class CallParser(ABC):
    """Content, and calls that begin with one of `markers`. Its subclasses say how a call reads.

    A call exists from `begin` on. If what follows its marker is not a call, all of it is content, as it was written. If
    a call breaks off later, it keeps the arguments that it has, and what is read since is content. A call that the end
    of the answer cuts off keeps what came of it, and if that is only its name, the name.

    White space between calls is dropped, and that beside a call is content only where words stand both before and
    behind it: the words of an answer stay apart, and an answer that is calls alone has no content.
    """

    markers: Markers
    """What a call may begin with."""
    marked = True
    """Whether they are written for nothing else, so that a name behind one is a call, even where the answer ends."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.reader = Reader()
        self.in_call = False
        """Whether what comes next may belong to a call."""
        self._named: tuple[str, str] | None = None
        self._count = 0
        self._content: list[str] = []
        self._calls: list[CallDelta] = []
        self._arguments: list[str] = []
        self._space: list[str] = []
        self._kept = 0  # of what is in _space: what stood before the call that came last
        self._has_words = False
        self._after_call = False
        self._steps = self._run()
        next(self._steps)

    @abstractmethod
    def call(self, marker: str) -> Steps[None]:
        """Reads on behind `marker`: calls, up to their end. Raises Malformed where something else comes."""

    def push(self, text: str) -> Delta:
        if text:
            self.reader.feed(text)
            next(self._steps)
        return self._delta()

    def finish(self) -> Delta:
        self.reader.ended = True
        for _ in self._steps:
            raise AssertionError("a parser waits for text behind the end of the answer")
        if not self._after_call:
            self._content += self._space
        return self._delta()

    def name(self, name: str, call_id: str = "") -> None:
        """What the call that is being read will be named once it begins."""
        if not name:
            raise Malformed
        self._named = name, call_id

    def begin(self, arguments: str = "") -> None:
        """What has been read is a call, whose arguments begin with `arguments`. It needs its name."""
        if self._named is None:
            raise Malformed
        name, call_id = self._named
        self._named = None
        self._end_arguments()
        self._calls.append(CallDelta(self._count, name, id=call_id))
        self._count += 1
        if not self._after_call:
            self._kept = len(self._space) if self._has_words else 0
        del self._space[self._kept :]
        self._after_call = True
        self.argue(arguments)

    def argue(self, arguments: str) -> None:
        """The arguments go on, and nothing that has been read can become content any more."""
        self._arguments.append(arguments)
        self.commit()

    def commit(self) -> None:
        self.reader.record.clear()

    def _run(self) -> Steps[None]:
        while marker := (yield from self.reader.read_until(self.markers, self._say)):
            self.in_call = True
            try:
                yield from self.call(marker)
            except Ended:
                if self._named and self.marked:
                    self.begin()
            except Malformed:
                pass
            self.in_call = False
            self._named = None
            self._say("".join(self.reader.record))
            self.commit()

    def _say(self, text: str) -> None:
        """Content. White space waits for what comes behind it."""
        if self._count and not self._has_words:
            text = text.lstrip(SPACE)
        words = text.rstrip(SPACE)
        if words:
            self._has_words, self._after_call = True, False
            self._content += self._space
            self._content.append(words)
            self._space.clear()
        if len(words) < len(text):
            self._space.append(text[len(words) :])

    def _delta(self) -> Delta:
        self._end_arguments()
        content, calls = "".join(self._content), self._calls
        self._content.clear()
        if not calls:
            return Delta("", content)
        self._calls = []
        return Delta("", content, calls)

    def _end_arguments(self) -> None:
        if not self._arguments:
            return
        arguments = "".join(self._arguments)
        self._arguments.clear()
        if self._calls:
            self._calls[-1].arguments = arguments
        elif arguments:
            self._calls.append(CallDelta(self._count - 1, arguments=arguments))
