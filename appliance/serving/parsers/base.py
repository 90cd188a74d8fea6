"""What a parser makes of a model's text, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from appliance.checkpoint.call_grammar import Piece


class Tool(msgspec.Struct, frozen=True):
    """A function that the model may call. `parameters` is a JSON schema; {} for one without arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool = False


class CallDelta(msgspec.Struct):
    """The next part of one tool call. The first of each `index` has the name, and no other does; the `arguments` of
    all, put together, are the JSON text of one object."""

    index: int
    name: str | None = None
    arguments: str = ""
    id: str = ""
    """In the first of an index, what the model itself calls this call, where its format has that and later turns need
    it; else ""."""


class Delta(msgspec.Struct):
    """What the answer gains; a part may be empty. Of content and calls in one delta, content came first."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = []

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


class OutputParser(Protocol):
    """Reads one answer. The deltas of a text, put together, do not depend on where the text was split; no character of
    it is lost: what is not a well-formed call is content."""

    def push(self, text: str) -> Delta:
        """What `text` adds. Text that may turn out to be a marker is held back until that is known."""
        ...

    def finish(self) -> Delta:
        """What was held back, now that nothing more comes."""
        ...


class ToolFormat(Protocol):
    """How one kind of model writes tool calls."""

    name: str
    keeps_special: bool
    """Whether its markers are special tokens, which the detokeniser must not skip then."""

    shapes: Callable[[Sequence[Tool]], Mapping[str, Piece]] | None
    """What comes behind each marker of a call, as a grammar; None where a marker may stand in free text, too, or where
    arguments cannot be bound to a schema."""

    def parser(self, tools: Sequence[Tool]) -> OutputParser: ...


class Section(NamedTuple):
    """Reasoning as it stands in an answer: behind `begin`, up to the first of `ends`. `closing` ends it where the model
    does not; where it does so once more, `final` does, behind which no reasoning comes."""

    begin: str
    ends: tuple[str, ...]
    closing: str
    final: str = ""


class ReasoningFormat(Protocol):
    """How one kind of model writes its reasoning."""

    name: str
    pairs: Mapping[str, str]
    """What begins reasoning that comes before the answer, and what then ends it. The first pair is what a prompt
    opens."""
    keeps_special: bool
    """As a ToolFormat's."""
    interleaved: bool
    """Whether reasoning comes more than once in an answer; else it only comes at its beginning."""
    calls_within: tuple[str, ...]
    """Markers of calls in which a marker of interleaved reasoning is part of the call."""

    @property
    def sections(self) -> Sequence[Section]:
        """The first one is what a prompt opens."""
        ...

    def opened_by(self, prompt: str) -> bool:
        """Whether the prompt, or its end, has begun the reasoning."""
        ...

    def parser(self, inner: OutputParser, *, opened: bool = False, separate: bool = True) -> OutputParser:
        """What is not reasoning goes through `inner`. `opened`: the prompt has already begun the reasoning. Without
        `separate`, the reasoning is content, with its markers, where it stands."""
        ...
