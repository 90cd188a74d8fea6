"""The framework's complaints about a request's fields, in our words: the field, what was sent, and what is right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from litestar import Request
from litestar.exceptions import ValidationException
from litestar.params import ParameterKwarg
from litestar.utils.scope.state import ScopeState
from msgspec import inspect

from console.refusals import Refusal

MISSING: Final = (
    (
        re.compile(r"Missing required query parameter '(?P<field>[^']+)'"),
        "Add it to the address, as in ?{field}=VALUE.",
    ),
    (re.compile(r"missing required field `(?P<field>[^`]+)`"), "Send it with the form."),
)
SHOWN = 100
"""Characters of a value in a message."""


def refuse_value(request: Request[Any, Any, Any], error: ValidationException) -> Refusal:
    """422 with the field's name."""
    problems = error.extra if isinstance(error.extra, list) else []
    first: Any = problems[0] if problems else {}
    about = first if isinstance(first, dict) else {}
    said = str(about.get("message") or error.detail)
    for pattern, remedy in MISSING:
        if found := pattern.search(said):
            field = found["field"]
            return Refusal(422, f"The field {field} is missing.", remedy.format(field=field), field=field)
    for name, field, kind in _fields(request):
        if name == about.get("key"):
            return _refuse(field, kind, _sent(request, field))
    return Refusal(422, said, "Correct it and try again.", field=about.get("key"))


def _refuse(field: str, kind: inspect.Type, sent: Sequence[str]) -> Refusal:
    if len(sent) != 1:
        return Refusal(422, f"The field {field} was sent {len(sent):,} times.", "Send it once.", field=field)
    value = sent[0]
    if isinstance(kind, inspect.StrType):  # it is too long, and may be a secret
        return Refusal(422, f"The field {field} has {len(value):,} characters.", _remedy(kind), field=field)
    shown = value if len(value) <= SHOWN else f"{value[:SHOWN]}…"
    return Refusal(422, f"The field {field} cannot be {shown!r}.", _remedy(kind), field=field, value=shown)


def _remedy(kind: inspect.Type) -> str:
    match kind:
        case inspect.LiteralType(values=values):
            *others, last = [str(value) for value in values if value != ""]
            return f"Use {', '.join(others)} or {last}." if others else f"Use {last}, or leave it out."
        case inspect.BoolType():
            return "Use true or false."
        case inspect.IntType(ge=int(least), le=int(most)):
            return f"Use a whole number from {least:,} to {most:,}."
        case inspect.IntType():
            return "Use a whole number, such as 32."
        case inspect.StrType(max_length=int(most)):
            return f"Use at most {most:,} characters."
    return "Correct it and try again."


def _fields(request: Request[Any, Any, Any]) -> Iterator[tuple[str, str, inspect.Type]]:
    """Of what the route takes from the address or the form: the name in our code, the name in the request, and the
    type."""
    handler: Any = request.route_handler
    model: Any = inspect.type_info(handler.signature_model)
    for taken in model.fields:
        kind = _plain(taken.type)
        if taken.name == "data" and isinstance(kind, inspect.StructType | inspect.DataclassType):
            for field in kind.fields:
                yield field.encode_name, field.encode_name, _plain(field.type)
        elif isinstance(kind, inspect.DictType):  # any names, each once
            for name in _form(request):
                if len(_sent(request, name)) != 1:
                    yield taken.name, name, _plain(kind.value_type)
        else:
            definition = handler.parsed_fn_signature.parameters[taken.name].kwarg_definition
            alias = definition.name if isinstance(definition, ParameterKwarg) else None
            yield taken.name, alias or taken.name, kind


def _plain(kind: inspect.Type) -> inspect.Type:
    """Without what only describes it, and without None."""
    if isinstance(kind, inspect.Metadata):
        return _plain(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _plain(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    return kind


def _sent(request: Request[Any, Any, Any], field: str) -> list[str]:
    value = _form(request).get(field, request.query_params.getall(field, []))
    return value if isinstance(value, list) else [str(value)]


def _form(request: Request[Any, Any, Any]) -> dict[str, Any]:
    form = ScopeState.from_scope(request.scope).form
    return form if isinstance(form, dict) else {}
