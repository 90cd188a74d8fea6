"""What stands in a message and says nothing of its cause: printed arguments, rejected input, long lists of what is
allowed, source code, advice.

It is replaced by as many spaces, so that the rest keeps its place.
"""

from __future__ import annotations

import re

# Each may hold any words at all, those of another failure among them.
DUMPS = re.compile(
    r"input_value=(?:[\w.]{0,60}[(\[{]|\.\.\.)[^\n]{0,4000}?(?=, input_type=|$)"  # pydantic's
    r"|\b(?:Namespace|ServerArgs|EngineArgs|AsyncEngineArgs|[A-Z]\w{1,40}Config)\((?=\w{1,60}=)[^\n]{0,4000}"
    r"|There are some potential root causes\.[^\n]{0,4000}"  # Ray's, of any actor that is gone
    r"|(?<=with config: )[^\n]{0,4000}"
    r"|(?:(?<![\w.+-])['\"]?[\w.+-]{1,60}['\"]?, ){12}(?:['\"]?[\w.+-]{1,60}['\"]?(?:, )?){0,400}"  # of choices
    r"|^ {0,8}frame #\d{1,4}: [^\n]{0,2000}"  # of a native stack
    r"|^ {0,20}(?:raise |return |assert |File \"|[~^]{2,200})[^\n]{0,1000}",
    re.MULTILINE,
)
ADVICE = re.compile(
    r"(?:^|(?<=[.!?;,:)] )|(?<=\n))[ \t]{0,20}(?:if (?:you|your|this|reserved|the problem)\b|please\b|checkout '"
    r"|try\b|consider\b"
    r"|you (?:can|may|might|could|should|need)\b|to (?:fix|avoid|resolve|suppress|silence|debug)\b|for debugging\b"
    r"|for (?:more|further) information\b|make sure\b|see (?:also|the|https?:)\b|(?:hint|note|tip): |compile with `"
    r"|it (?:may|might) help\b)[^\n]{0,800}?(?:[.!](?= |$)|$)",
    re.IGNORECASE | re.MULTILINE,
)


# A name as programs write it, rather than a pointer to a page.
NAMED = re.compile(
    r"(?:^|[^\w/])(?:--[a-z]|`[^`]{2,80}`|[A-Z][A-Z0-9]{1,30}_[A-Z0-9_]{2,60}|[a-z]{1,30}_[a-z_]{2,60})"
    r"(?!.{0,200}https?:)"
)
MAX_ADVICE = 240


def without_dumps(text: str) -> str:
    return DUMPS.sub(_blank, text)


def without_advice(text: str) -> str:
    return ADVICE.sub(_blank, text)


def with_advice(fix: str, message: str) -> str:
    """With what the message itself advises, where that names a flag, a variable or a value."""
    advised = (" ".join(found[0].split()) for found in ADVICE.finditer(without_dumps(message)))
    said = next((words for words in advised if NAMED.search(words) and len(words) <= MAX_ADVICE), "")
    return f'{fix} The message itself says: "{said}"' if said else fix


def _blank(found: re.Match[str]) -> str:
    return " " * len(found[0])
