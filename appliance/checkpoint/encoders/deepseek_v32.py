"""DeepSeek V3.2's prompt, as encoding/encoding_dsv32.py in its repository writes it.

Results of tools follow the calls they belong to, in one element; behind them, and behind each message of the user,
stands whether the model thinks. It thinks only behind the last one.
"""

from __future__ import annotations

from typing import ClassVar, Final

from appliance.checkpoint.chat_template import TemplateError
from appliance.checkpoint.encoders import dsml
from appliance.checkpoint.encoders.base import (
    Encoder,
    Options,
    Turn,
    check_called,
    last_of_user,
    required_text,
    without_old_developers,
)

_TOOLS: Final = """## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
%s
</functions>
"""  # noqa: E501


class DeepSeekV32(Encoder):
    name = "deepseek-v3.2"
    text = _TOOLS
    variables = frozenset({"messages", "tools", "enable_thinking", "thinking", "drop_thinking", "response_format"})
    thinks = False
    roles = frozenset({"system", "developer", "user", "assistant", "tool"})
    message_fields: ClassVar = {"assistant": frozenset({"prefix"})}

    def encode(self, turns: list[Turn], options: Options) -> str:
        if options.thinks and options.drops_reasoning:
            turns = without_old_developers(turns)
        last, parts, results = last_of_user(turns), [dsml.BOS], _Results()
        for index, turn in enumerate(turns):
            mark = dsml.THINK if options.thinks and index >= last else dsml.THINK_END
            answered = options.generates or index < len(turns) - 1
            if turn.role != "tool":
                results.end()
            match turn.role:
                case "system":
                    parts.append("\n\n".join([turn.content, *_shown(turn)]))
                case "user":
                    parts.append(dsml.USER + turn.content)
                    parts.append(f"{dsml.ASSISTANT}{mark}" if answered else "")
                case "developer":
                    request = f"# The user's message is: {required_text(turn)}"
                    parts.append(dsml.USER + "\n\n".join(["", *_shown(turn), request]))
                    parts.append(f"{dsml.ASSISTANT}{mark}" if answered else "")
                case "tool":
                    parts.append(results.add(turn))
                    parts.append(f"\n\n{mark}" if answered and results.complete else "")
                case "assistant":
                    parts.append(_answer(turn, thought=options.thinks and index > last))
                    results = _Results(turn)
        results.end()
        return "".join(parts)


class _Results:
    """Those of the calls that the message of the assistant just before them has made, in the order of the calls."""

    def __init__(self, of: Turn | None = None) -> None:
        self._of = of
        self._ids = {call.get("id") or "": index for index, call in enumerate(of.tool_calls)} if of else {}
        self._count = 0

    @property
    def complete(self) -> bool:
        return self._of is not None and self._count == len(self._of.tool_calls)

    def add(self, turn: Turn) -> str:
        check_called(turn, self._ids)
        if self.complete:
            raise TemplateError(f"{turn.path}: there are more results than calls. Send one for each.", turn.path)
        self._count += 1
        begin = "\n\n<function_results>" if self._count == 1 else ""
        return f"{begin}\n<result>{turn.content}</result>" + ("\n</function_results>" if self.complete else "")

    def end(self) -> None:
        """Raises TemplateError where some have come, but not all: the model tells them apart by their order."""
        of, self._of = self._of, None
        self._ids = {}
        if of is not None and 0 < self._count < len(of.tool_calls):
            place = f"{of.path}.tool_calls"
            raise TemplateError(
                f"{place}: of {len(of.tool_calls)} calls, {self._count} have a result; send the others, too, right "
                "behind this message.",
                place,
            )


def _shown(turn: Turn) -> list[str]:
    tools = [_TOOLS % dsml.tool_schemas(turn.tools)] if turn.tools else []
    return [*tools, *([dsml.response_format(turn.response_format)] if turn.response_format else [])]


def _answer(turn: Turn, *, thought: bool) -> str:
    if thought and not (turn.reasoning or turn.tool_calls):
        place = f"{turn.path}.reasoning_content"
        raise TemplateError(
            f"{place} is missing: behind the last message of the user, this model thinks before it answers. Send what "
            "it thought, or set enable_thinking to false.",
            place,
        )
    reasoning = f"{turn.reasoning}{dsml.THINK_END}" if thought else ""
    calls = f"\n\n{dsml.calls(turn.tool_calls, 'function_calls')}" if turn.tool_calls else ""
    return f"{reasoning}{turn.content}{calls}" + ("" if turn.unfinished else dsml.EOS)
