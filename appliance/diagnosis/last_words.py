"""What ends a process that had served: lines after which it says nothing more, other than a request's error."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from appliance.diagnosis.dressing import plain, undress
from appliance.diagnosis.error_lines import ErrorLine
from appliance.diagnosis.pointers import AFTERMATH, FATAL_LEAD, SURVIVED, is_end_on_request, is_giving_up
from appliance.diagnosis.progress import ENDING
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
