"""Calls that are written as tags: a tag around all, one around each call, and one around each parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from appliance.checkpoint.call_grammar import SPACE, OneOf, Piece, Repeated, optional
from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.markers import markers
from appliance.serving.parsers.parameters import ParameterParser
from appliance.serving.parsers.reader import Malformed, Steps
from appliance.serving.parsers.shapes import MOST, ParameterTags, parameters

_NAME: Final = re.compile(r"[^\"<>\n]*")


@dataclass(frozen=True)
class Tags:
    """How a format writes its tags. Those of a call and a parameter are given up to the name."""

    around: tuple[str, ...]
    around_end: tuple[str, ...]
    call: str
    call_end: str
    parameter: str
    parameter_end: str
    bare: bool = True
    """Whether a call may stand without a tag around it."""
    quoted: bool = False
    """Whether names are."""
    says_kind: bool = False
    """Whether the tag of a parameter says that its value is text, or JSON."""
    strips_lines: bool = False
    """As a ParameterParser's."""

    def shapes(self, tools: Sequence[Tool]) -> Mapping[str, Piece]:
        tags = ParameterTags(self._opening, self.parameter_end, self.strips_lines, self.says_kind)
        call = OneOf([(self._name(tool.name), ">", SPACE, parameters(tool, tags), self.call_end) for tool in tools])
        more = Repeated((SPACE, self.call, call), 0, MOST - 1)
        ends = OneOf(self.around_end)
        around = dict.fromkeys(self.around, (SPACE, self.call, call, more, SPACE, ends))
        return {**around, **({self.call: (call, more, optional((SPACE, ends)))} if self.bare else {})}

    def _opening(self, key: Piece, is_text: bool) -> Piece:
        said = f' string="{"true" if is_text else "false"}"' if self.says_kind else ""
        return (self.parameter, self._name(key), f"{said}>")

    def _name(self, name: Piece) -> Piece:
        return ('"', name, '"') if self.quoted else name


class TagParser(ParameterParser):
    """Reads all that a format's tags say. The closing tag around calls may be missing, and the last one of a call where
    that comes, as models leave them out at times."""

    def __init__(self, tools: Sequence[Tool], tags: Tags) -> None:
        self.tags = tags
        self.strips_lines = tags.strips_lines
        self.markers = markers(*tags.around, *([tags.call] if tags.bare else []))
        super().__init__(tools)

    def call(self, marker: str) -> Steps[None]:
        reader, tags = self.reader, self.tags
        if marker != tags.call:
            yield from reader.skip_space()
            yield from reader.expect(tags.call)
        follows = tags.call
        while follows == tags.call:
            end = yield from self._one_call()
            if end in tags.around_end:
                return
            self.in_call = False
            yield from reader.skip_space()
            follows = yield from reader.accept(tags.call, *tags.around_end)
            self.in_call = True
        if follows:
            self.commit()

    def _one_call(self) -> Steps[str]:
        """Returns the tag that ends it."""
        reader, tags = self.reader, self.tags
        name, _ = yield from self._rest_of_tag()
        self.begin_parameters(name)
        while True:
            yield from reader.skip_space()
            tag = yield from reader.expect(tags.parameter, tags.call_end, *tags.around_end)
            if tag != tags.parameter:
                self.end_parameters()
                return tag
            key, text = yield from self._rest_of_tag()
            yield from self.parameter(key, tags.parameter_end, text)

    def _rest_of_tag(self) -> Steps[tuple[str, bool | None]]:
        """The name in a tag, and what it says of its value: whether it is text."""
        reader = self.reader
        quote = yield from reader.accept('"')
        name = yield from reader.read_while(_NAME)
        if quote:
            yield from reader.expect(quote)
        yield from reader.skip_space()
        said = yield from reader.accept('string="true"', 'string="false"')
        yield from reader.skip_space()
        yield from reader.expect(">")
        name = name.strip()
        if not name:
            raise Malformed
        return name, said == 'string="true"' if said else None
