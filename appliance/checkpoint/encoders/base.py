"""What an encoder is: the prompt of messages, written by code where a model has no chat template.

It stands in for a ChatTemplate and reads the same messages, in OpenAI's form. Its errors name the field of a request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from appliance.checkpoint.chat_template import TemplateError

SWITCHES: Final = ("enable_thinking", "thinking")


@dataclass(frozen=True)
class Options:
    """What a request may say beside its messages."""

    thinks: bool
    drops_reasoning: bool
    """Whether what the model thought before the last message of the user is left out."""
    effort: str | None
    generates: bool
    """Whether an answer is to follow, so that the prompt ends where it begins."""


@dataclass
class Turn:
    """A message, checked. `path` is its place in the request."""

    role: str
    path: str
    content: str = ""
    reasoning: str = ""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    tool_call_id: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    response_format: Any = None
    task: str | None = None
    unfinished: bool = False
    """An assistant's message that the answer continues."""
    blocks: list[tuple[str | None, str]] = field(default_factory=list)
    """Of a user's turn that several messages make: the id of a call and its result, or None and a text."""
    order: Mapping[str, int] = field(default_factory=dict)
    """The ids of the calls before it, in whose order results stand."""


class Encoder(ABC):
    """`source` says why it was chosen, for errors."""

    name: ClassVar[str]
    """In a profile."""
    text: ClassVar[str]
    """In which parsers look for their marks, as they do in a template's."""
    variables: ClassVar[frozenset[str]]
    """Those that it reads, as a template's."""
    thinks: ClassVar[bool]
    """Whether the model reasons where nothing says so."""
    roles: ClassVar[frozenset[str]]
    """That it knows; OpenAI's `developer`, which stands for the system, has become that before."""
    message_fields: ClassVar[Mapping[str, frozenset[str]]]
    """By role, the fields that messages may have beside OpenAI's."""
    efforts: ClassVar[Mapping[str, str]] = {}
    """What is written before the messages, by `reasoning_effort`; nothing where there is none."""
    # As a ChatTemplate's.
    wants_short_ids: ClassVar[bool] = False
    keeps_tools: ClassVar[bool] = True

    def __init__(self, source: str) -> None:
        self.source = source

    def nearest_effort(self, effort: str) -> str:
        return effort

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text, with its special tokens. Raises TemplateError naming the field."""
        options = Options(
            thinks=self._switch(SWITCHES, variables, self.thinks) and variables.get("reasoning_effort") != "none",
            drops_reasoning=self._switch(("drop_thinking",), variables, True),
            effort=self._effort(variables.get("reasoning_effort")),
            generates=bool(add_generation_prompt),
        )
        turns = [self._turn(message, f"messages[{index}]") for index, message in enumerate(messages)]
        for index, message in enumerate(messages[:-1]):
            if message.get("prefix"):
                place = f"messages[{index}].prefix"
                raise TemplateError(f"{place}: only the last message can be continued. Remove the field.", place)
        shown = variables.get("response_format")
        if tools or shown:
            if not turns or turns[0].role not in ("system", "developer"):
                turns.insert(0, Turn("system", "messages"))
            turns[0].tools = tools or turns[0].tools
            turns[0].response_format = shown or turns[0].response_format
        return self.encode(turns, options)

    @abstractmethod
    def encode(self, turns: list[Turn], options: Options) -> str: ...

    @staticmethod
    def _switch(names: Sequence[str], variables: Mapping[str, Any], default: bool) -> bool:
        for name in names:
            value = variables.get(name)
            if value is not None and not isinstance(value, bool):
                place = f"chat_template_kwargs.{name}"
                raise TemplateError(f"{place}: {value!r:.60} is not valid; use true or false.", place)
        return next((variables[name] for name in names if variables.get(name) is not None), default)

    def _effort(self, effort: Any) -> str | None:
        if effort is None or effort == "none" or not self.efforts:
            return None
        if not isinstance(effort, str) or effort not in self.efforts:
            known = ", ".join(("none", *self.efforts))
            raise TemplateError(f"reasoning_effort: {effort!r:.60} is not valid; use {known}.", "reasoning_effort")
        return effort

    def _turn(self, message: Mapping[str, Any], path: str) -> Turn:
        role = message.get("role")
        if role not in self.roles:
            known = ", ".join(sorted(self.roles))
            raise TemplateError(f"{path}.role: this model does not know {role!r:.60}; use {known}.", f"{path}.role")
        return Turn(
            role=str(role),
            path=path,
            content=_text(message.get("content"), f"{path}.content", "\n\n" if role == "tool" else ""),
            reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
            tool_calls=message.get("tool_calls") or (),
            tool_call_id=message.get("tool_call_id") or "",
            tools=message.get("tools") or (),
            response_format=message.get("response_format"),
            task=message.get("task"),
            unfinished=bool(message.get("prefix") or message.get("wo_eos")),
        )


def last_of_user(turns: Sequence[Turn]) -> int:
    """Where the last message of a user or developer is; -1 without one."""
    return max((index for index, turn in enumerate(turns) if turn.role in ("user", "developer")), default=-1)


def without_old_developers(turns: Sequence[Turn]) -> list[Turn]:
    """Where old reasoning is dropped, so are a developer's messages before the last of the user."""
    last = last_of_user(turns)
    return [turn for index, turn in enumerate(turns) if index >= last or turn.role != "developer"]


def required_text(turn: Turn) -> str:
    """Raises TemplateError where there is none."""
    if not turn.content:
        raise TemplateError(
            f"{turn.path}.content is empty; a message of a developer needs text.", f"{turn.path}.content"
        )
    return turn.content


def check_called(turn: Turn, called: Mapping[str, int]) -> None:
    """Raises TemplateError for a result of none of the calls before it, whose ids `called` has ("" without one)."""
    place = f"{turn.path}.tool_call_id"
    if not called:
        raise TemplateError(f"{turn.path}: there is no tool call before this result; send the call, too.", turn.path)
    if turn.tool_call_id and turn.tool_call_id not in called and "" not in called:
        message = f"{place}: no tool call before this message has the id {turn.tool_call_id!r:.60}; send the call, too."
        raise TemplateError(message, place)


def _text(content: Any, path: str, between: str) -> str:
    """Of a text, of text parts, or of nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content if isinstance(content, list) else [content]):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if not isinstance(part, dict) or kind != "text" or not isinstance(part.get("text"), str):
            place = f"{path}[{index}]" if isinstance(content, list) else path
            raise TemplateError(f"{place} is of type {kind!r}; this model only accepts text.", place)
        texts.append(part["text"])
    return between.join(texts)
