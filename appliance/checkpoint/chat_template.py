"""A model's chat template: messages to the prompt's text, in a sandbox with bounds.

It offers what transformers offers to templates (`raise_exception`, `strftime_now`, `tojson`, loop controls), so that
templates written for it render alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

import jinja2
import jinja2.meta

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.json_file import read_text
from appliance.checkpoint.template_sandbox import BoundedEnvironment, LimitPassed
from appliance.checkpoint.tokenizer import read_settings

MAX_SOURCE: Final = 1024 * 1024
_SHORT_IDS: Final = "|length != 9"
_FILENAME: Final = "<chat template>"

# What an expression of a template may raise on messages that it does not expect.
_EXPECTED: Final = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
    MemoryError,
)  # fmt: skip


# For templates that know three efforts only, as gpt-oss's does.
_NEAREST_EFFORT: Final = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}


class TemplateError(ValueError):
    """Messages that a template refuses or cannot render; says which template and line. `param` is the path of the field
    in the request."""

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param


class ChatTemplate:
    """A parsed template. `source` names where its `text` came from, for errors; `variables` are the names that it reads
    and does not set itself everywhere."""

    message_fields: ClassVar[Mapping[str, frozenset[str]]] = {}
    """By role, fields of messages beside OpenAI's that it is known to read."""
    keeps_tools: ClassVar[bool] = False
    """Whether it is given tools as the client sent them, instead of all with the same fields."""

    def __init__(self, text: str, source: str, tokens: Mapping[str, str]) -> None:
        """Raises TemplateError if the text is not a valid template."""
        self.text = text
        self.source = source
        self._tokens = tokens
        self._environment = BoundedEnvironment()
        self._environment.filters["tojson"] = _to_json
        self._environment.globals["raise_exception"] = _raise_exception
        self._environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = self._environment.compile_bounded(text, _FILENAME)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(self._environment.parse(text)))
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"{source}, line {error.lineno}: {error.message}") from error
        except (RecursionError, SyntaxError, ValueError, MemoryError) as error:  # nested too deeply for Jinja or Python
            raise TemplateError(f"{source} cannot be compiled: {error}") from error

    @property
    def wants_short_ids(self) -> bool:
        """Whether it rejects ids of tool calls that are not nine letters and digits, as Mistral's templates do."""
        return _SHORT_IDS in self.text

    def nearest_effort(self, effort: str) -> str:
        """The reasoning effort as the template knows it."""
        named = f"'{effort}'" in self.text or f'"{effort}"' in self.text
        return effort if named else _NEAREST_EFFORT.get(effort, effort)

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """From chat_template.jinja, or else tokenizer_config.json; None where the model has none.

        Raises CheckpointError when there is one that is no template.
        """
        settings = read_settings(folder)
        path = folder / "chat_template.jinja"
        if path.exists():
            text: Any = read_text(path, "chat-template", MAX_SOURCE)
        else:
            path = folder / "tokenizer_config.json"
            text = settings.get("chat_template")
            if isinstance(text, list):  # several, by name: [{"name": "default", "template": "..."}, ...]
                named = {item.get("name"): item.get("template") for item in text if isinstance(item, dict)}
                text = named.get("default")
            if text is None:
                return None
        if not isinstance(text, str) or len(text) > MAX_SOURCE:
            raise _invalid(path, "not text of a sensible size")
        tokens = {}
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            token = settings.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                tokens[name] = token
        try:
            return cls(text, path.name, tokens)
        except TemplateError as error:
            raise _invalid(path, str(error)) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text. Content given as a list of text parts is put together first.

        Raises TemplateError when the template refuses the messages, fails, or passes a limit.
        """
        values = {
            **self._tokens,
            **variables,
            "messages": [flatten(message) for message in messages],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._environment.render_bounded(self._template, values)
        except _Raised as error:
            raise TemplateError(f"The model's chat template rejects these messages: {error.message}") from error
        except _EXPECTED as error:
            line = _line_of(error)
            where = f"{self.source}, line {line}" if line else self.source
            raise TemplateError(
                f"The model's chat template fails ({where}): {error or type(error).__name__}"
            ) from error


def flatten(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with content given as text parts (`[{"type": "text", "text": "..."}]`) put together as one text.

    Raises TemplateError for a part that is no text.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    texts = []
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise TemplateError(f"content[{number}] is of type {kind!r}; this model only accepts text")
        texts.append(part["text"])
    return {**message, "content": "".join(texts)}


def _invalid(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        "chat-template-invalid",
        f"The chat template cannot be used: {why}.",
        file=path,
        field="chat_template",
        remedy="Copy the original file, or correct the template there.",
    )


def _line_of(error: BaseException) -> int | None:
    """The template's line in which an error arose: Jinja rewrites tracebacks to name it."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILENAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


class _Raised(jinja2.TemplateError):
    """The template itself called `raise_exception`."""


def _raise_exception(message: object) -> NoReturn:
    raise _Raised(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own, writes `<`, `>` and `&` as they are: the text is for a model, not for a page."""
    if indent is not None and (not isinstance(indent, int) or indent > 16):
        raise LimitPassed("it indents JSON by too much")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
