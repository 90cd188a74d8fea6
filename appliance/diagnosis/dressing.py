"""Prefixes of log lines: timestamps of containers and journals, process tags, log levels.

Every engine, and everything that carries its output, adds one. A line's key identifies its stream, so that processes
sharing a log can be told apart; `header` means that a logger wrote it, not the bare process.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

ANSI = re.compile(
    r"(?:\x1b|ESC|\^\[|#033|\\u001b|\\x1b|\\033)(?:\[[0-9;?]{0,20}[ -/]?[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\))"
)
MAX_LAYERS = 9
MAX_LINE = 4000
QUOTES = ">│┃"  # of a mail, and of a terminal's panes

_LEVELS = "DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|EXCEPTION"
_DAY = r"\d{4}[-/]\d\d[-/]\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_TRT = r"\[T(?:ensor)?RT-LLM\]"
# Each row is one layer; the name of the group that matched says what kind it is. Tried in this order, again and again.
_LAYERS = (
    rf"(?P<stamp>\[{_DAY} {_CLOCK}(?P<tags>(?: [A-Z]{{1,6}}\d{{1,4}}){{0,6}})\]:? ?)",  # SGLang
    rf"(?P<time>\[?{_DAY}[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?\]?[:,]?(?=\s|$)\s?)",
    r"(?P<tag>\((?P<who>[^()]{0,80}\bpid=\d{1,9}[^()]{0,80}|Process)\) ?)",  # vLLM, Ray
    rf"(?P<placed>(?P<loud>{_LEVELS}) {{1,9}}(?:\d\d-\d\d {_CLOCK} {{1,9}})?\[?[\w/.-]{{1,80}}\.py:\d{{1,9}}\](?=\s|$)\s?)",  # vLLM # noqa: E501
    rf"(?P<level>(?P<word>{_LEVELS})\b(?::[\w.]{{1,60}}:|:)?(?: {{1,9}}\d\d-\d\d {_CLOCK}| \.\.\.)?(?=\s|$)\s{{0,6}})",
    rf"(?P<bracketed>\[(?P<inside>{_LEVELS}|Error|Warning|Warn|Info|Debug)\](?=\s|$)\s?)",
    rf"(?P<dashed>- (?:[\w.]{{1,80}} - )?(?P<between>{_LEVELS}) - )",  # Python's logging
    rf"(?P<barred>\| (?P<shown>{_LEVELS}) {{0,9}}\| (?:[\w.<>]{{1,120}}:[\w<>]{{1,80}}:\d{{1,9}} - )?)",  # loguru
    r"(?P<place>\[[\w/.-]{1,80}\.py:\d{1,9}\](?=\s|$)\s?)",
    rf"(?P<column>[\w-]{{1,60}}\.py {{0,30}}:\d{{1,6}} {{1,9}}{_DAY} {_CLOCK} )",  # RunPod
    rf"(?P<glog>\[?(?P<letter>[IWEF])(?:\d{{3,4}} {_CLOCK})?\s{{1,9}}(?:\d{{1,9}}\s{{1,9}})?[\w/.-]{{1,120}}:\d{{1,9}}\] )",  # noqa: E501
    rf"(?P<trt>(?:\[\d\d/\d\d/\d{{4}}-{_CLOCK}\] )?{_TRT}(?: \[RANK \d{{1,9}}\])? ?\[(?P<mark>[IWEF]|{_LEVELS})\] )",
    r"(?P<rank>\[(?:rank|default)\d{1,9}\]:? ?)",  # torchrun
    r"(?P<journal>[^\W\d_]{3} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,80} (?P<unit>[\w./@:-]{1,80}(?:\[\d{1,9}\])?): )",
    r"(?P<cri>(?:stdout|stderr) [FP] )",
    r"(?P<pod>\[pod/[^\]]{1,200}\] )",
    r"(?P<kernel>\[ {0,6}\d{1,9}\.\d{6}\] )",
    rf"(?P<human>\[[A-Z][a-z]{{2}} [A-Z][a-z]{{2}} [ \d]\d {_CLOCK} \d{{4}}\] )",  # dmesg -T
    r"(?P<ggml>(?:\d{1,5}\.)?\d\d\.\d{3}\.\d{3} (?P<loudness>[DIWEF]) {1,3})",  # llama.cpp
    r"(?P<piped>\[[\w.-]{1,40} (?:stdout|stderr)\] (?:\[\d{1,9}\] )?)",  # a router's child
    rf"(?P<clock>\[?{_CLOCK}\]? )",
)
_LAYER = re.compile("|".join(_LAYERS))
_COMPOSE = re.compile(r"(?P<service>\[?[A-Za-z][\w.-]{0,80}\]?) {0,40}\| ?")
_GLOG_LEVELS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}


class Dressed(NamedTuple):
    """A line, undressed. `key` names the stream; `words` is what the process itself said, indentation and all."""

    key: str
    level: str
    header: bool
    words: str


def plain(text: str) -> str:
    """Without colours and other terminal codes; of a progress bar only what was drawn last; never very long."""
    if len(text) > MAX_LINE:
        text = text[:MAX_LINE]
    if "\x1b" in text or "[0m" in text or "[3" in text or "^[" in text:  # some stores write the code's name
        text = ANSI.sub("", text)
    if text[:1] in QUOTES:
        text = text[1:].removeprefix(" ").rstrip(QUOTES[1:] + " ")
    text = text.removesuffix("^M")
    if "\r" in text:
        text = text.rstrip("\r").rpartition("\r")[2]
    return text


@functools.lru_cache(maxsize=1024)  # several ask for the same line, one after the other
def undress(text: str) -> Dressed:
    """`text` is a plain line."""
    if not text or text[0] in " \t":
        return Dressed("", "", False, text)
    key = level = ""
    header = False
    position = 0
    if (service := _COMPOSE.match(text)) is not None and not text.startswith(("INFO", "ERROR", "WARN", "DEBUG")):
        key, position = service["service"], service.end()
    for _ in range(MAX_LAYERS):
        layer = _LAYER.match(text, position)
        if layer is None:
            break
        position = layer.end()
        match layer.lastgroup:
            case "stamp":
                level, header = "", True  # whatever forwards it may add a level of its own
            case "tag":
                key += layer["tag"].rstrip()
            case "placed":
                level, header = layer["loud"], True
            case "level":
                level, header = layer["word"], True
            case "bracketed":
                level = layer["inside"].upper()
            case "dashed":
                level, header = layer["between"], True
            case "barred":
                level, header = layer["shown"], True
            case "place" | "column":
                header = True
            case "ggml":
                level, header = _GLOG_LEVELS[layer["loudness"]], True
            case "glog":
                level, header = _GLOG_LEVELS[layer["letter"]], True
            case "trt":
                level, header = _GLOG_LEVELS.get(layer["mark"], layer["mark"]), True
            case "journal":
                key += layer["unit"]
            case "rank" | "pod":
                key += layer[0]
    return Dressed(key, level, header, text[position:])
