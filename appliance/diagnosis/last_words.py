"""What ends a process that had served: lines after which it says nothing more, other than a request's error."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from appliance.diagnosis.dressing import plain, undress
from appliance.diagnosis.error_lines import ErrorLine
from appliance.diagnosis.pointers import AFTERMATH, FATAL_LEAD, SURVIVED, is_end_on_request, is_giving_up
from appliance.diagnosis.progress import BEGINNING, ENDING, LOUD, STARTED
from appliance.diagnosis.searchable import Searchable
from appliance.diagnosis.traceback_reader import LoggedException
from appliance.protocol import EvidenceLine

LINES_AFTER = 400
# These serve requests, whose errors they log and survive.
SERVERS = re.compile(r"api.?server|http|router|proxy|frontend|gateway", re.IGNORECASE)
FATAL_LEVELS = ("CRITICAL", "FATAL")
QUIET = ("DEBUG", "INFO", "NOTICE", "WARNING", "WARN")
DEAD = re.compile(
    r"EngineDeadError|output_handler failed|Fatal Python error: |SIGQUIT received"
    r"|exited (?:with )?(?:code|status)[ =:]{0,3}[1-9]|code=exited, status=[1-9]|exited \([1-9]\d{0,2}\)",
    re.IGNORECASE,
)
# As vLLM's server begins to shut down, before it ends its processes.
ASKED_TO_END = "[shutdown] API server: shutdown triggered"
READER = re.compile(
    r"AsyncLLM output_handler failed\.?$|(?:\w{1,40}\.){0,8}EngineDeadError: EngineCore encountered an issue"
)
MODULE = re.compile(r'File "[^"\n]{1,400}", line \d{1,9}, in <module>')


def is_last_word(line: ErrorLine, lines: Sequence[EvidenceLine]) -> bool:
    """Whether that line ends its process, and nothing after it says otherwise."""
    return line.tier != "warning" and _tells_of_an_end(line) and not _works_after(line.line.number, line.key, lines)


def is_uncaught(exception: LoggedException, lines: Sequence[EvidenceLine]) -> bool:
    """Whether a program ended with it: through no logger, out of its main module, and nothing works after it."""
    if exception.level or not exception.frames or is_end_on_request(exception) or SURVIVED.search(exception.lead):
        return False
    outermost = exception.frames[0][0].text
    return MODULE.match(outermost) is not None and not _works_after(exception.line.number, exception.key, lines)


def asked_to_end(log: Searchable) -> dict[str, int]:
    """By stream, the number of the line in which a server says that it was asked to end: the last word of its start,
    and said before any other process logged an error."""
    began = [log.last(word) for word in (*STARTED, *(word.encode() for word in BEGINNING))]
    start = max((position for position in began if position is not None), default=-1)
    asked: dict[str, int] = {}
    for position in log.positions(ASKED_TO_END.lower().encode()):
        dressed = undress(plain(log.lines[position].text))
        if position > start and dressed.level == "INFO" and dressed.words.strip() == ASKED_TO_END:
            asked.setdefault(dressed.key, position)
    before = max(asked.values(), default=0)
    loud = {at for level in LOUD for at in log.positions(level.lower().encode()) if start < at < before}
    told = (undress(plain(log.lines[at].text)) for at in loud)
    if any(dressed.level in LOUD and dressed.key and SERVERS.search(dressed.key) is None for dressed in told):
        return {}
    return {key: log.lines[position].number for key, position in asked.items()}


def is_of_a_reader(line: ErrorLine) -> bool:
    """Whether a server's reader of its engine's answers logs that the engine is dead."""
    return READER.match(undress(plain(line.line.text)).words.strip()) is not None


def _tells_of_an_end(line: ErrorLine) -> bool:
    words = line.line.text
    if DEAD.search(words) or FATAL_LEAD.search(words) or is_giving_up(words) or line.level in FATAL_LEVELS:
        return True
    exception = line.exception
    if exception is None or is_end_on_request(exception) or SURVIVED.search(words) or AFTERMATH.search(exception.text):
        return False
    if not line.level:
        return words.startswith(exception.type) and not exception.frames
    return bool(line.key) and SERVERS.search(line.key) is None


def _works_after(number: int, key: str, lines: Sequence[EvidenceLine]) -> bool:
    """Whether that stream says anything in peace after the line; of an unsigned line, whether any does."""
    begin = bisect_right(lines, number, key=attrgetter("number"))
    for line in lines[begin : begin + LINES_AFTER]:
        dressed = undress(plain(line.text))
        quiet = dressed.level in QUIET or (dressed.header and not dressed.level)
        if quiet and (not key or dressed.key == key) and ENDING.search(dressed.words) is None:
            return True
    return False
