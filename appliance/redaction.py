"""Removes secrets from what leaves the machine: logs, commands that are printed, environments. The kinds of secrets are
a table of rows; each row names the placeholder that replaces it."""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from appliance.secret_names import FLAG, SETTING, STEMS, USERINFO, VARIABLE, is_secret_name


class Row(NamedTuple):
    """`pattern` finds it; its group `secret` or `listed` is what is removed, or else the whole match. One of the words
    `says` occurs beside such a secret, and `gate` is searched before `pattern`, both in lower case: most log lines
    contain neither and are skipped quickly."""

    what: str
    says: tuple[str, ...]
    pattern: re.Pattern[str]
    gate: re.Pattern[str] | None = None


# A value as programs print it: a list, or in quotes (which may themselves be escaped, inside of JSON) up to their end,
# or bare up to a blank or what separates values.
_VALUE = (
    r"(?:(?P<listed>[\[(][^\])\n]{1,4096}[\])])|(?:[bu](?=[\"']))?(?P<quote>\\*[\"'])?"
    r"(?P<secret>(?(quote)(?:(?!(?P=quote)).){1,4096}|[^\s\"'\\,;&<>\[\](){}]{1,4096})))"
)
AUTHORIZATION = "authorization header"

_SEPARATOR = r"\\*[\"']?\s*(?:[:=]|,\s|\s)\s*"
_ASSIGN = r"\\*[\"']?\s*[:=]\s*"
_COLUMN = r"\\*[\"']?(?:\s*[:=]\s*|\s{2,})"

_STEMS = "|".join(STEMS)
_NAMED = re.compile(rf"(?:{_STEMS})[a-z0-9_-]{{0,80}}\\*[\"']?(?:\s*[:=]|\s\s)")
_FLAGGED = re.compile(rf"-[a-z0-9_-]{{0,80}}(?:{_STEMS})")

ROWS: tuple[Row, ...] = (
    Row(
        AUTHORIZATION,
        ("authorization",),
        re.compile(rf"(?i)authorization{_ASSIGN}{_VALUE}(?(quote)|(?:\s+[^\s\"'\\,;]+)?)"),
    ),
    Row("bearer token", ("bearer",), re.compile(r"(?i)\bbearer\s+(?P<secret>[A-Za-z0-9._~+/=-]{6,})")),
    Row("cookie", ("cookie",), re.compile(rf"(?i)\b(?:set-)?cookie{_ASSIGN}(?P<secret>[^\"'\r\n]{{4,4096}})")),
    Row("session", ("ingot-session",), re.compile(r"ingot-session=(?P<secret>[^\s;\"']+)")),
    Row(
        "API key",
        ("sk-", "sk_", "hf_", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xox", "nvapi-", "aiza", "ingot-",
         "akia", "asia", "dckr_pat_"),
        re.compile(
            # Inside of a name, `sk` may be a word: only what is long without a break is a key there.
            r"(?<![A-Za-z0-9_-])sk[-_][A-Za-z0-9_-]{8,}"
            r"|(?<![A-Za-z0-9])(?:sk[-_](?:[A-Za-z0-9]{1,15}[-_]){0,3}[A-Za-z0-9]{16,}[A-Za-z0-9_-]*"
            r"|hf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|[a-z]{20,})|gh[pos]_[A-Za-z0-9]{16,}"
            r"|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{12,}|xox[abeoprs]-[A-Za-z0-9-]{10,}"
            r"|nvapi-[A-Za-z0-9_-]{12,}|AIza[A-Za-z0-9_-]{20,}|ingot-[A-Za-z0-9_-]{40,}|dckr_pat_[A-Za-z0-9_-]{12,}"
            r"|(?:AKIA|ASIA)[A-Z0-9]{16})"
        ),
    ),
    Row("web token", ("eyj",), re.compile(r"eyJ[A-Za-z0-9_-]{6,2000}\.[A-Za-z0-9_-]{4,4000}\.[A-Za-z0-9_-]*")),
    Row(
        "password in an address",
        ("://",),
        re.compile(USERINFO),
    ),
    Row(
        "signed address",
        ("code=", "token=", "key=", "sig=", "signature=", "credential="),
        re.compile(
            r"(?i)[?&](?:code|(?:[a-z_-]{1,30}[-_])?token|(?:[a-z_-]{1,30}[-_])?key|sig|(?:[a-z-]{1,30}-)?signature"
            r"|(?:[a-z-]{1,30}-)?credential)=(?P<secret>[^\s&\"'<>#]+)"
        ),
    ),
    Row("set-up code", ("set-up code", "setup code"), re.compile(r"(?i)set-?up code\W{1,4}(?P<secret>[\w-]{8,})")),
    Row(
        "environment variable",
        STEMS,
        re.compile(rf"(?<![A-Za-z0-9_]){VARIABLE}{_ASSIGN}{_VALUE}"),
        _NAMED,
    ),
    Row("setting", STEMS, re.compile(rf"(?i:{SETTING}){_COLUMN}{_VALUE}"), _NAMED),
    Row("flag", STEMS, re.compile(rf"(?<![\w-])--?{FLAG}{_SEPARATOR}{_VALUE}"), _FLAGGED),
)  # fmt: skip

_PEM_BEGINS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_PEM_ENDS = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
PEM = "private key"
KNOWN = "known secret"

PEM_LINES = 100
"""How many lines of a private key to remove if its end is missing, as in a truncated log."""
_IN_PEM = re.compile(r"\s*|[A-Za-z0-9+/=]+|(?:Proc-Type|DEK-Info): .*|.*?[A-Za-z0-9+/]{40,}={0,2}")

_HARMLESS = re.compile(
    r"(?i)(?:none|null|true|false|\*+|auto|\W{1,3}|-?\d|[\[(][\d\s,.-]*[\])]|\$\{?\w+\}?|<removed: [^>]*>)"
)
"""Values that are no secret whatever their name, such as references to a variable."""
_NUMBER = re.compile(r"-?\d{1,7}(?:\.\d+)?")
_COUNTED = re.compile(r"(?i)\A(?!.*(?:pass|pwd|secret|credential|auth)).*(?:token|key)", re.DOTALL)
"""Names under which numbers are no secrets, as in `MAX_TOKENS=512`."""

_SHORTEST_KNOWN = 6
LONGEST_LINE = 32 * 1024
"""Characters processed at once; a longer line is split at blanks."""


@dataclass
class Redactor:
    """Processes text line by line, since a private key spans several. `known` are the values of known secrets; `counts`
    is how many of each kind were removed."""

    known: Iterable[str] = ()
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        values = sorted({value for value in self.known if len(value) >= _SHORTEST_KNOWN}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, values))) if values else None
        self._pem_lines = self._pem_column = 0

    def line(self, text: str) -> str | None:
        """The line without its secrets; None for one that is inside a private key."""
        if self._pem_lines:
            self._pem_lines -= 1
            if (ends := _PEM_ENDS.search(text)) is not None:
                self._pem_lines = 0
                text = text[ends.end() :]
                if not text.strip():
                    return None
            elif any(_IN_PEM.fullmatch(part.strip()) for part in (text, text[self._pem_column :])):
                return None  # other lines are another process's, or the key was cut off
        if self._known is not None:
            text = self._known.sub(lambda match: self._removed(KNOWN), text)
        low = text.lower()
        if "-----begin" in low and (begins := _PEM_BEGINS.search(text)) is not None:
            ends = _PEM_ENDS.search(text, begins.end())
            if ends is None:
                self._pem_lines, self._pem_column = PEM_LINES, begins.start()
            rest = text[ends.end() :] if ends else text[len(text.rstrip("\n")) :]
            text = text[: begins.start()] + self._removed(PEM) + rest
        for row in ROWS:
            if any(word in low for word in row.says) and (row.gate is None or row.gate.search(low)):
                text = row.pattern.sub(functools.partial(self._without, row.what), text)
        return text

    def lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Each with its own end of line."""
        for text in lines:
            for piece in _pieces(text):
                if (kept := self.line(piece)) is not None:
                    yield kept

    def text(self, text: str) -> str:
        """A whole text, such as one value of a document."""
        self._pem_lines = 0
        kept = "".join(self.lines(text.splitlines(keepends=True)))
        self._pem_lines = 0
        return kept

    def value(self, value: Any) -> Any:
        """For a document: values under the name of a secret are removed whole, all other texts are searched."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self._named(str(key), inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        return value

    def _named(self, name: str, value: Any) -> Any:
        secret = is_secret_name(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if secret and (number or isinstance(value, str)) and value != "" and not _harmless(name, str(value)):
            return self._removed("setting")
        if secret and isinstance(value, list | tuple):
            return [self._named(name, inner) for inner in value]
        return self.value(value)

    def _without(self, what: str, match: re.Match[str]) -> str:
        groups = match.re.groupindex
        if "secret" not in groups:
            return self._removed(what)
        taken = "listed" if "listed" in groups and match["listed"] else "secret"
        start, end = (place - match.start() for place in match.span(taken))
        if _harmless(match[0][:start], match[taken]):
            return match[0]
        if what == AUTHORIZATION:
            end = len(match[0])  # `Basic dXNlcjpw`: the scheme, and what follows it
        return match[0][:start] + self._removed(what) + match[0][end:]

    def _removed(self, what: str) -> str:
        self.counts[what] += 1
        return f"<removed: {what}>"


def _pieces(text: str) -> Iterator[str]:
    while len(text) > LONGEST_LINE:
        cut = text.rfind(" ", LONGEST_LINE // 2, LONGEST_LINE) + 1 or LONGEST_LINE
        yield text[:cut]
        text = text[cut:]
    yield text


def secrets_of_environment(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The values of environment variables with names of secrets."""
    return [value for name, value in environ.items() if is_secret_name(name) and not _harmless(name, value)]


def without_secrets(text: str) -> str:
    """A text that stands by itself, such as a command line."""
    return Redactor().text(text)


def holds_secret(text: str) -> bool:
    redactor = Redactor()
    redactor.text(text)
    return redactor.counts.total() > 0


def variable_without_secrets(name: str, value: str) -> str:
    """The value of an environment variable: none of it is left where its name is a secret's."""
    if is_secret_name(name) and value and not _harmless(name, value):
        return "<removed: environment variable>"
    return without_secrets(value)


def _harmless(name: str, value: str) -> bool:
    """Whether the value under `name`, or after a text that ends in it, is not a secret."""
    if _HARMLESS.fullmatch(value):
        return True
    return _NUMBER.fullmatch(value) is not None and _COUNTED.match(name) is not None
