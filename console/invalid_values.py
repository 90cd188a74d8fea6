"""The framework's complaints about a request's fields, in our words."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from litestar.exceptions import ValidationException

from console.refusals import Refusal


class Complaint(NamedTuple):
    """What the framework's message looks like, and what we say instead: `{field}` and the pattern's groups are filled
    in."""

    pattern: re.Pattern[str]
    message: str
    remedy: str


COMPLAINTS: Final = (
    Complaint(
        re.compile(r"Missing required query parameter '(?P<field>[^']+)'"),
        "The field {field} is missing.",
        "Add it to the address, as in ?{field}=VALUE.",
    ),
    Complaint(
        re.compile(r"missing required field `(?P<field>[^`]+)`"),
        "The field {field} is missing.",
        "Send it with the form.",
    ),
    Complaint(
        re.compile(r"Expected `int\b[^`]*`, got"),
        "{field} is not a whole number.",
        "Use a number such as 32.",
    ),
    Complaint(
        re.compile(r"Invalid enum value '?(?P<value>[^']*)'?"),
        "{field} cannot be {value}.",
        "Choose one of the values that the form offers.",
    ),
)


def refuse_value(error: ValidationException) -> Refusal:
    """422 with the field's name."""
    problems = error.extra if isinstance(error.extra, list) else []
    first: Any = problems[0] if problems else {}
    about = first if isinstance(first, dict) else {}
    field, said = about.get("key"), str(about.get("message") or error.detail)
    for complaint in COMPLAINTS:
        if found := complaint.pattern.search(said):
            told = {"field": field or "A field", **found.groupdict()}
            message, remedy = (text.format(**told) for text in (complaint.message, complaint.remedy))
            return Refusal(422, message, remedy, field=found.groupdict().get("field", field))
    return Refusal(422, f"{field}: {said}" if field else said, "Correct it and try again.", field=field)
