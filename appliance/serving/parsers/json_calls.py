"""Calls that are written as JSON: an object with a name and arguments, or an array of such objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import CallParser
from appliance.serving.parsers.json_scanner import is_json
from appliance.serving.parsers.markers import markers
from appliance.serving.parsers.reader import SPACE, Malformed, Steps

_NAME: Final = "name"
_ARGUMENTS: Final = frozenset({"arguments", "parameters"})


class JsonCallParser(CallParser):
    """Behind a marker, an object `{"name": ..., "arguments": {...}}` or an array of them; then the marker's end, where
    it has one and the model writes it.

    `parameters` means arguments too. Arguments that are an object go through as they come, in the model's own words;
    those that come before the name wait for it. None, or null, is {}; a string that has an object in it is that object.
    """

    def __init__(self, tools: Sequence[Tool], ends: dict[str, str]) -> None:
        """`ends`: each marker, and what ends it; "" for one without an end."""
        self.ends = ends
        self.markers = markers(*ends)
        super().__init__(tools)

    def call(self, marker: str) -> Steps[None]:
        yield from self.calls()
        if end := self.ends[marker]:
            yield from self.reader.skip_space()
            if (yield from self.reader.accept(end)):
                self.commit()

    def calls(self) -> Steps[None]:
        """An object, or an array of them."""
        reader = self.reader
        yield from reader.skip_space()
        if (yield from reader.expect("{", "[")) == "{":
            yield from self.members()
        else:
            yield from self.array()

    def array(self) -> Steps[None]:
        """Objects, behind their bracket and up to the other."""
        reader = self.reader
        while True:
            yield from reader.skip_space()
            yield from reader.expect("{")
            yield from self.members()
            yield from reader.skip_space()
            if (yield from reader.expect(",", "]")) == "]":
                self.commit()
                return

    def members(self, known: frozenset[str] | None = None) -> Steps[None]:
        """The members of a call's object, behind its brace, up to the other. `known`: those that one may have that
        counts as a call, and arguments among them; with None, others are read over."""
        reader = self.reader
        has_arguments = begun = False
        waiting = "{}"
        named = False
        yield from reader.skip_space()
        while True:
            key = yield from self._string()
            yield from reader.skip_space()
            yield from reader.expect(":")
            yield from reader.skip_space()
            if key == _NAME and not named:
                self.name((yield from self._string()))
                named = True
            elif key in _ARGUMENTS and not has_arguments:
                has_arguments = True
                if named:
                    yield from self._pass_arguments()
                    begun = True
                else:
                    waiting = yield from self._whole_arguments()
            elif known is not None and key not in known:
                raise Malformed
            else:
                yield from reader.read_json(reader.record.append)
            yield from reader.skip_space()
            if (yield from reader.expect(",", "}")) == "}":
                break
            yield from reader.skip_space()
        if begun:
            self.commit()
        elif known is None or has_arguments:
            self.begin(waiting)
        else:
            raise Malformed

    def object_arguments(self) -> Steps[None]:
        """The arguments of a call whose name is known, which must be an object."""
        if (yield from self.reader.peek()) != "{":
            yield from self.reader.expect("{")
        self.begin()
        yield from self.reader.read_json(self.argue)

    def _pass_arguments(self) -> Steps[None]:
        """The arguments of a call whose name is known."""
        if (yield from self.reader.peek()) == "{":
            yield from self.object_arguments()
        else:
            self.begin((yield from self._whole_arguments()))

    def _whole_arguments(self) -> Steps[str]:
        text = yield from self._value()
        if text.startswith('"'):
            text = _decoded(text).strip(SPACE)
            if not is_json(text):
                raise Malformed
        if text == "null":
            return "{}"
        if not text.startswith("{"):
            raise Malformed
        return text

    def _string(self) -> Steps[str]:
        if (yield from self.reader.peek()) != '"':
            yield from self.reader.expect('"')
        return _decoded((yield from self._value()))

    def _value(self) -> Steps[str]:
        parts: list[str] = []

        def keep(part: str) -> None:
            parts.append(part)
            self.reader.record.append(part)

        yield from self.reader.read_json(keep)
        return "".join(parts)


def _decoded(text: str) -> str:
    """A JSON string's characters. Half a surrogate pair is none."""
    characters: str = json.loads(text)
    return characters.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
