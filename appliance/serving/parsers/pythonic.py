"""Pythonic: `[name(key="value"), other()]`, where a line begins, or in `<|python_start|>...<|python_end|>`.

Source: the pythonic templates for Llama 3.2 and Llama 4 (vLLM's tool_chat_template_llama3.2_pythonic and
_llama4_pythonic), and Meta's prompt format of Llama 4. They ask for calls alone; models write words before them too.
"""

from __future__ import annotations

from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.markers import markers
from appliance.serving.parsers.python_calls import PythonCallParser
from appliance.serving.parsers.reader import Malformed, Steps


class PythonicParser(PythonCallParser):
    markers = markers("[", "<|python_start|>", "<|python_tag|>")
    marked = False

    def call(self, marker: str) -> Steps[None]:
        if marker == "[":
            if not self.reader.marker_begins_line:
                raise Malformed
        else:
            yield from self.reader.skip_space()
            yield from self.reader.expect("[")
        yield from self.python_calls()
        yield from self.reader.skip_space()
        if (yield from self.reader.accept("<|python_end|>")):
            self.commit()


PYTHONIC = Format("pythonic", PythonicParser, keeps_special=True)
