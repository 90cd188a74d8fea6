"""Reads tracebacks from a log line by line, each within its own stream.

A traceback's lines carry their process's tag, and other processes write in between. Some engines prefix each line,
others only the first.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from dataclasses import dataclass, field

from appliance.diagnosis.dressing import plain, undress
from appliance.protocol import EvidenceLine

OPENING = "Traceback (most recent call last):"
MAX_OPEN = 16
MAX_LINES = 3000
MAX_SILENT = 300  # lines of others
MAX_FRAMES = 40
LINES_BEFORE = 6
MAX_PREFIX = 100

END = re.compile(r"^(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80})(?::(?: (?P<message>.{0,5000}))?)?$")
TYPE_NAME = re.compile(r"(?:Error|Exception|Exit|Interrupt|Fault|Warning|Failed|Iteration|Resources|Cast|Group|Empty)$")
# What may stand alone on a line in the middle of a traceback without being its end.
NO_TYPE = re.compile(r"(?:Killed|Aborted|Terminated|Done|INFO|WARNING|ERROR|DEBUG|Note|Loading|Process|usage)$")
FRAME = re.compile(r'\s{0,80}File "')
# A line of a message that only announces the next, and what pydantic adds to one.
HEADING = re.compile(
    r"validation errors? for (?:validator |field )?[\w.']{1,80}:?$|^(?:last )?errors?(?: message)?:$", re.IGNORECASE
)
DUMP = re.compile(r" {0,4}\[type=\w{1,60}, input_value=.{0,5000}$")
CHAIN = {
    "During handling of the above exception, another exception occurred:": "handling",
    "The above exception was the direct cause of the following exception:": "cause",
}


@dataclass(frozen=True)
class LoggedException:
    """`line` is where the exception's own line stands; `text` is that line without prefix, with the lines of a longer
    message. `lead` is what was said right before the traceback; `level` the logger's level, "" for a bare one; `link`
    says whether it follows another of the same chain. `frames` are (place, code), the innermost last. `body` is the
    further lines of its message."""

    type: str
    message: str
    text: str
    line: EvidenceLine
    frames: tuple[tuple[EvidenceLine, str], ...] = ()
    body: tuple[EvidenceLine, ...] = ()
    key: str = ""
    level: str = ""
    lead: str = ""
    link: str = ""
    start: int = 0

    @property
    def frame(self) -> EvidenceLine | None:
        return self.frames[-1][0] if self.frames else None

    @property
    def headline(self) -> str:
        """Its type and the first line of its message that says something."""
        said = [words for line in self.message.splitlines() if (words := DUMP.sub("", line).strip())]
        first = next((words for words in said if not HEADING.search(words)), said[0] if said else "")
        return f"{self.type}: {first}" if first else self.type


@dataclass(eq=False)
class _Open:
    """A traceback that has begun. `headed`: whether its lines carry a logger's prefix; None while it is not known."""

    key: str
    level: str
    lead: str
    link: str
    start: int
    latest: int
    prefix: str
    indent: str
    headed: bool | None
    unknown: re.Pattern[str] | None  # an unknown prefix, with different numbers on each line
    first: tuple[EvidenceLine, str] | None = None
    frames: deque[tuple[EvidenceLine, str]] = field(default_factory=lambda: deque(maxlen=MAX_FRAMES))


class TracebackReader:
    """Feed it every line, in order; it answers with an exception when the last line of its traceback has come.

    Memory is bounded whatever is fed. A line costs next to nothing while no traceback is open.
    """

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._before: deque[tuple[int, str]] = deque(maxlen=LINES_BEFORE)

    def feed(self, number: int, text: str) -> LoggedException | None:
        found = None
        if OPENING in text:
            self._begin(number, plain(text))
        elif self._open:
            found = self._follow(number, plain(text))
        self._before.append((number, text))
        return found

    def unfinished(self) -> list[LoggedException]:
        """The tracebacks whose last line has not come: without a type, and with their latest line for it."""
        return [_logged(opened, EvidenceLine(opened.latest, "")) for opened in self._open]

    def _begin(self, number: int, text: str) -> None:
        before, _, _ = text.rpartition(OPENING)
        key, level, header, words = undress(text)
        lead = words[: words.index(OPENING)] if OPENING in words else ""
        indent = lead if not lead.strip(" |+-E") else ""
        said = lead.strip(" |+-:\t")
        link = ""
        if len(said) < 3 or not any(map(str.isalpha, said)):
            said, link = self._said_before(key, before if header else "")
        # A sentence before the opening stands there alone; a prefix that is no sentence may stand before each line.
        headed = None if header else False
        unknown = _prefix(lead) if lead.strip() and not header and not indent else None
        opened = _Open(key, level, said, link, number, number, before, indent, headed, unknown)
        self._open.append(opened)
        if len(self._open) > MAX_OPEN:
            del self._open[0]

    def _said_before(self, key: str, prefix: str) -> tuple[str, str]:
        """The last words of this stream before now, those of the same logger's line first; and the kind of link if they
        are those between two of a chain."""
        before = [plain(text) for _, text in reversed(self._before)]
        own = [text for text in before if prefix and text.startswith(prefix)]
        for text in (*own, *before):
            dressed = undress(text)
            words = dressed.words.strip(" |+-")
            if dressed.key == key and words:
                return words[:300], CHAIN.get(words, "")
        return "", ""

    def _follow(self, number: int, text: str) -> LoggedException | None:
        dressed = None
        for opened in reversed(self._open):
            if number - opened.latest > MAX_SILENT or number - opened.start > MAX_LINES:
                self._open.remove(opened)
                return None
            if text.startswith(opened.prefix) and text[len(opened.prefix) :][:1] in (" ", "\t") and opened.prefix:
                words = opened.indent + text[len(opened.prefix) :] if opened.indent else text[len(opened.prefix) :]
            else:
                dressed = dressed or undress(text)
                if dressed.key != opened.key:
                    continue
                if opened.headed is None and (FRAME.match(dressed.words) or _ends_at_once(dressed.words)):
                    opened.headed = dressed.header
                    opened.prefix = text[: len(text) - len(dressed.words)]
                if opened.headed is None or opened.headed != dressed.header:
                    continue
                words = dressed.words
            if opened.unknown is not None and (prefix := opened.unknown.match(words)) is not None:
                words = words[prefix.end() :]
            if opened.indent:
                if not words.startswith(opened.indent):
                    continue
                words = words[len(opened.indent) :]
            return self._take(opened, number, words)
        return None

    def _take(self, opened: _Open, number: int, words: str) -> LoggedException | None:
        opened.latest = number
        if not words.strip():
            return None
        if words[0] in " \t":
            if FRAME.match(words):
                opened.headed = True if opened.headed is None else opened.headed
                frame = (EvidenceLine(number, words.strip()), "")
                opened.first = opened.first or frame
                opened.frames.append(frame)
            elif opened.frames and not opened.frames[-1][1] and not opened.frames[-1][0].text.endswith(")"):
                opened.frames[-1] = (opened.frames[-1][0], words.strip()[:200])
            return None
        end = END.match(words.rstrip())
        if end is None or not _is_type(end["type"], bool(end["message"]), opened):
            return None
        self._open.remove(opened)
        line = EvidenceLine(number, words.rstrip())
        return _logged(opened, line, end["type"], (end["message"] or "").rstrip())


@functools.lru_cache(maxsize=64)
def _prefix(text: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\d+", r"\\d{1,20}", re.escape(text[:MAX_PREFIX])))


def _logged(opened: _Open, line: EvidenceLine, kind: str = "", message: str = "") -> LoggedException:
    frames = tuple(opened.frames)
    if opened.first and frames and frames[0][0] != opened.first[0]:
        frames = (opened.first, *frames)
    return LoggedException(
        type=kind,
        message=message,
        text=line.text,
        line=line,
        frames=frames,
        key=opened.key,
        level=opened.level,
        lead=opened.lead,
        link=opened.link,
        start=opened.start,
    )


def _ends_at_once(words: str) -> bool:
    """A traceback without a frame, whose next line is its last."""
    end = END.match(words.rstrip())
    return end is not None and TYPE_NAME.search(end["type"]) is not None


def _is_type(name: str, has_message: bool, opened: _Open) -> bool:
    if TYPE_NAME.search(name):
        return True
    last = name.rpartition(".")[2]
    if not opened.frames or NO_TYPE.match(last):
        return False
    return "." in name or (has_message and last[0].isupper()) or last.lower().endswith(("error", "timeout"))
