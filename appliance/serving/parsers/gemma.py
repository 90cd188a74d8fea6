"""Gemma's three formats, of which each model writes one.

- Gemma 3: Python in a fenced block, one call a line: ```` ```tool_code ````. Source: Google's guide to function calling
  with Gemma 3. A list of calls in it is read too.
- FunctionGemma: `<start_function_call>call:NAME{key:<escape>text<escape>,n:1}<end_function_call>`. Source: its chat
  template and model card.
- Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,n:1}<tool_call|>`. Source: its chat template.

In the last two, keys are bare, only strings are quoted, and nothing in them is escaped. A bare word is taken as a
string, and JSON's own quotes are understood.
"""

from __future__ import annotations

import re
from typing import Final

from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.literals import Literals, escaped
from appliance.serving.parsers.markers import markers
from appliance.serving.parsers.python_calls import PythonCallParser
from appliance.serving.parsers.reader import Ended, Malformed, Steps

_FENCE: Final = "```"
_ENDS: Final = {"<start_function_call>": "<end_function_call>", "<|tool_call>": "<tool_call|>"}
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]*")
_KEY: Final = re.compile(r"""[^:,{}\[\]<>"\s]*""")


class GemmaLiterals(Literals):
    brackets = "[{"
    word = re.compile(r"[^,{}\[\]<]*")

    def string(self) -> Steps[bool]:
        if (yield from self.reader.peek()) == '"':
            yield from self.reader.read_json(self.sink)
            return True
        quote = yield from self.reader.accept("<escape>", '<|"|>')
        if not quote:
            return False
        self.sink('"')
        if not (yield from self.reader.read_until(markers(quote), lambda text: self.sink(escaped(text)))):
            raise Ended
        self.sink('"')
        return True

    def key(self) -> Steps[None]:
        if (yield from self.string()):
            return
        key = yield from self.reader.read_while(_KEY)
        if not key:
            raise Malformed
        self.sink(f'"{escaped(key)}"')

    def bare(self, word: str) -> str:
        return f'"{escaped(word)}"'


class GemmaParser(PythonCallParser):
    markers = markers(f"{_FENCE}tool_code", *_ENDS)

    def call(self, marker: str) -> Steps[None]:
        if marker in _ENDS:
            yield from self._braced_call()
            yield from self.reader.skip_space()
            if (yield from self.reader.accept(_ENDS[marker])):
                self.commit()
        else:
            yield from self._fenced_calls()

    def _fenced_calls(self) -> Steps[None]:
        while True:
            yield from self.reader.skip_space()
            if (yield from self.reader.accept(_FENCE)):
                self.commit()
                return
            if (yield from self.reader.accept("[")):
                yield from self.python_calls()
            else:
                yield from self.python_call()

    def _braced_call(self) -> Steps[None]:
        reader = self.reader
        yield from reader.skip_space()
        yield from reader.expect("call:")
        yield from reader.skip_space()
        name = yield from reader.read_while(_NAME)
        yield from reader.expect("{")
        self.name(name)
        self.begin("{")
        literals = GemmaLiterals(reader, self.argue)
        yield from reader.skip_space()
        if not (yield from reader.accept("}")):
            while True:
                yield from literals.key()
                yield from reader.skip_space()
                yield from reader.expect(":")
                self.argue(": ")
                yield from literals.value()
                yield from reader.skip_space()
                if (yield from reader.expect(",", "}")) == "}":
                    break
                self.argue(", ")
                yield from reader.skip_space()
        self.argue("}")


GEMMA = Format("gemma", GemmaParser, keeps_special=True)
