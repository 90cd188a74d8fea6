"""Calls that are written as Python: `name(key=value, ...)`."""

from __future__ import annotations

import json
import re
from typing import Final

from appliance.serving.parsers.calls import CallParser
from appliance.serving.parsers.literals import PythonLiterals
from appliance.serving.parsers.reader import Malformed, Steps

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]*")
_KEY: Final = re.compile(r"\w*")


class PythonCallParser(CallParser):
    """Arguments have names; values are literals. A call begins where its first argument does, or where it is clear that
    it has none: until then it might be prose."""

    def python_calls(self) -> Steps[None]:
        """Several, behind a bracket and up to the other."""
        while True:
            yield from self.reader.skip_space()
            yield from self.python_call()
            yield from self.reader.skip_space()
            if (yield from self.reader.expect(",", "]")) == "]":
                self.commit()
                return

    def python_call(self) -> Steps[None]:
        reader = self.reader
        name = yield from reader.read_while(_NAME)
        yield from reader.expect("(")
        self.name(name)
        before = "{"
        while True:
            yield from reader.skip_space()
            if (yield from reader.accept(")")):
                break
            key = yield from reader.read_while(_KEY)
            if not key and (yield from reader.peek()):
                raise Malformed
            yield from reader.skip_space()
            yield from reader.expect("=")
            if before == "{":
                self.begin()
            self.argue(f"{before}{json.dumps(key)}: ")
            before = ", "
            yield from PythonLiterals(reader, self.argue).value()
            yield from reader.skip_space()
            if (yield from reader.expect(",", ")")) == ")":
                break
        if before == "{":
            self.begin(before)
        self.argue("}")
