"""DeepSeek V4's prompt, as encoding/encoding_dsv4.py in its repositories writes it, in both revisions.

Results of tools are parts of a user's turn, in the order of the calls. Where there are tools, what the model thought
before stays in the prompt. The revisions differ in what an effort adds before the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
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

LATEST_REMINDER: Final = "<｜latest_reminder｜>"
# Small tasks that DeepSeek's own services set the model; `action` goes behind the beginning of an answer.
TASKS: Final = {name: f"<｜{name}｜>" for name in ("action", "query", "authority", "domain", "title", "read_url")}

_ABSOLUTE: Final = """Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.

"""  # noqa: E501
_BEYOND: Final = """Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.

"""  # noqa: E501
_TOOLS: Final = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

%s

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""  # noqa: E501


class _DeepSeekV4(Encoder):
    text = _TOOLS
    variables = frozenset({
        "messages", "tools", "enable_thinking", "thinking", "reasoning_effort", "drop_thinking", "response_format",
    })  # fmt: skip
    thinks = True
    roles = frozenset({"system", "developer", "user", "assistant", "tool", "latest_reminder"})
    message_fields: ClassVar = {
        "assistant": frozenset({"prefix"}),
        "user": frozenset({"task"}),
        "latest_reminder": frozenset(),
    }

    def encode(self, turns: list[Turn], options: Options) -> str:
        turns = _with_results(turns)
        drops = options.drops_reasoning and not any(turn.tools for turn in turns)
        if options.thinks and drops:
            turns = without_old_developers(turns)
        last = last_of_user(turns)
        parts = [dsml.BOS, self.efforts.get(options.effort or "", "") if options.thinks else ""]
        for index, turn in enumerate(turns):
            before = turns[index - 1] if index else None
            thought = options.thinks and (index > last or not drops) and not (before and before.task)
            parts.append(_written(turn, thought=thought))
            follows = turns[index + 1].role if index + 1 < len(turns) else None
            if follows in ("assistant", "latest_reminder") or (follows is None and options.generates):
                mark = dsml.THINK if options.thinks and (index >= last or not drops) else dsml.THINK_END
                parts.append(_behind(turn, mark, thinks=options.thinks, ends=follows is None))
        return "".join(parts)


class DeepSeekV4April(_DeepSeekV4):
    """The first one, of April 2026."""

    name = "deepseek-v4-april"
    efforts: ClassVar[Mapping[str, str]] = {
        "minimal": "", "low": "", "medium": "", "high": "", "xhigh": "", "max": _ABSOLUTE,
    }  # fmt: skip


class DeepSeekV4July(_DeepSeekV4):
    """0731. Which of its three efforts another name means is DeepSeek's own mapping (api-docs.deepseek.com, thinking
    mode)."""

    name = "deepseek-v4-0731"
    efforts: ClassVar[Mapping[str, str]] = {
        "minimal": "", "low": "", "medium": _ABSOLUTE, "high": _ABSOLUTE, "xhigh": _ABSOLUTE, "max": _BEYOND,
    }  # fmt: skip


def _with_results(turns: list[Turn]) -> list[Turn]:
    """Results, and messages of the user, that follow each other as one turn, which a task ends. Results stand in the
    order of the calls."""
    joined: list[Turn] = []
    called: dict[str, int] = {}
    order: dict[str, int] = {}
    for turn in turns:
        if turn.role == "assistant" and turn.tool_calls:
            order = {call.get("id") or "": index for index, call in enumerate(turn.tool_calls)}
            called |= order
        if turn.role not in ("user", "tool"):
            joined.append(turn)
            continue
        if turn.role == "tool":
            check_called(turn, called)
        before = joined[-1] if joined and joined[-1].role == "user" else None
        if before is None or (turn.role == "user" and before.task is not None):
            before = Turn("user", turn.path, task=turn.task, order=order)
            joined.append(before)
        before.blocks.append((turn.tool_call_id if turn.role == "tool" else None, turn.content))
    return joined


def _blocks(turn: Turn) -> str:
    results = [block for block in turn.blocks if block[0] is not None]
    sorted_results = iter(sorted(results, key=lambda block: turn.order.get(block[0] or "", 0)))
    texts = [text if call is None else _result(next(sorted_results)[1]) for call, text in turn.blocks]
    return "\n\n".join(texts)


def _result(text: str) -> str:
    return f"<tool_result>{text}</tool_result>"


def _written(turn: Turn, *, thought: bool) -> str:
    tools = [_TOOLS % dsml.tool_schemas(turn.tools)] if turn.tools else []
    shown = [*tools, *([dsml.response_format(turn.response_format)] if turn.response_format else [])]
    match turn.role:
        case "system":
            return "\n\n".join([turn.content, *shown])
        case "developer":
            return dsml.USER + "\n\n".join([required_text(turn), *shown])
        case "user":
            return dsml.USER + _blocks(turn)
        case "latest_reminder":
            return LATEST_REMINDER + turn.content
        case _:
            reasoning = f"{turn.reasoning}{dsml.THINK_END}" if thought else ""
            calls = f"\n\n{dsml.calls(turn.tool_calls, 'tool_calls')}" if turn.tool_calls else ""
            return f"{reasoning}{turn.content}{calls}" + ("" if turn.unfinished else dsml.EOS)


def _behind(turn: Turn, mark: str, *, thinks: bool, ends: bool) -> str:
    """What begins the answer to a turn. The published encoder begins none behind a message that is not the user's;
    where the prompt `ends` with one, an answer is wanted all the same."""
    if turn.task is not None:
        if turn.task not in TASKS:
            place = f"{turn.path}.task"
            raise TemplateError(f"{place}: {turn.task!r:.60} is not valid; use {', '.join(TASKS)}.", place)
        answer = dsml.ASSISTANT + (dsml.THINK if thinks else dsml.THINK_END) if turn.task == "action" else ""
        return answer + TASKS[turn.task]
    if turn.role in ("user", "developer") or (ends and turn.role != "assistant"):
        return dsml.ASSISTANT + mark
    return ""
