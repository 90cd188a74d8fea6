"""Terminal output made safe to show: colours become class names, every other control sequence is removed.

A log line is hostile input. What leaves this module holds printable text only: no escape sequence, no control
character, no invisible character that reorders what is read. Colours are reset at each line's end, so that any line
can be shown without the ones before it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# CSI sequences; OSC, DCS, PM, APC and SOS strings up to their terminator; every other escape of two characters. Each
# alternative starts with ESC and none can match the same text in two ways, so the time is linear in the line.
_ESCAPE = re.compile(
    r"\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-Z\\`-~]?"
)

# Characters that have no width or that reorder what follows them: they could make a line read as another one.
_INVISIBLE = (0xAD, 0x61C, 0x180E, 0xFEFF, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070))
_PRINTABLE: dict[int, str | None] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code != 0x09},  # their pictures, such as \u2400 for NUL
    0x1B: None,
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0)),
    **{code: f"\u27e8U+{code:04X}\u27e9" for code in _INVISIBLE},
}

_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_STYLES = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike"}
_STYLES_OFF = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("inverse",), 29: ("strike",)}

_PALETTE = (
    (0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229),
    (127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255), (255, 0, 255), (0, 255, 255),
    (255, 255, 255),
)  # fmt: skip


class Segment(NamedTuple):
    """A run of text in one style; `classes` are names for CSS, such as `ansi-red ansi-bold`."""

    text: str
    classes: str = ""


class _Pen:
    """The graphic state that SGR sequences change."""

    def __init__(self) -> None:
        self.foreground = ""
        self.background = ""
        self.styles: dict[str, None] = {}  # a set that keeps its order

    def classes(self) -> str:
        names = [*self.styles]
        if self.foreground:
            names.insert(0, self.foreground)
        if self.background:
            names.append(f"on-{self.background}")
        return " ".join(f"ansi-{name}" for name in names)

    def apply(self, parameters: str) -> None:
        """Obey one SGR sequence; what is not known is skipped."""
        codes = [int(code) if code.isdigit() and len(code) < 4 else 0 for code in re.split("[;:]", parameters)]
        position = 0
        while position < len(codes):
            code = codes[position]
            position += 1
            if code == 0:
                self.__init__()  # type: ignore[misc]
            elif code in _STYLES:
                self.styles[_STYLES[code]] = None
            elif code in _STYLES_OFF:
                for name in _STYLES_OFF[code]:
                    self.styles.pop(name, None)
            elif code in (38, 48):
                colour, position = _extended_colour(codes, position)
                if code == 38:
                    self.foreground = colour
                else:
                    self.background = colour
            elif 30 <= code <= 37 or 90 <= code <= 97:
                self.foreground = _COLOURS[code % 10] if code < 90 else f"bright-{_COLOURS[code % 10]}"
            elif 40 <= code <= 47 or 100 <= code <= 107:
                self.background = _COLOURS[code % 10] if code < 100 else f"bright-{_COLOURS[code % 10]}"
            elif code == 39:
                self.foreground = ""
            elif code == 49:
                self.background = ""


def _extended_colour(codes: list[int], position: int) -> tuple[str, int]:
    """The colour of `38;5;n` or `38;2;r;g;b` as the nearest of the sixteen that the page has, and where to go on.

    Sixteen classes are enough to tell things apart, and each keeps its contrast in light and dark.
    """
    kind = codes[position] if position < len(codes) else None
    if kind == 5 and position + 1 < len(codes):
        return _named(*_indexed(codes[position + 1])), position + 2
    if kind == 2 and position + 3 < len(codes):
        red, green, blue = codes[position + 1 : position + 4]
        return _named(red, green, blue), position + 4
    return "", len(codes)


def _indexed(index: int) -> tuple[int, int, int]:
    """A colour of the 256-colour palette."""
    if index < 16:
        return _PALETTE[index]
    if index >= 232:
        grey = 8 + 10 * (min(index, 255) - 232)
        return grey, grey, grey
    levels = (0, 95, 135, 175, 215, 255)
    cube = index - 16
    return levels[cube // 36], levels[cube // 6 % 6], levels[cube % 6]


def _named(red: int, green: int, blue: int) -> str:
    nearest = min(
        range(16),
        key=lambda index: sum((a - b) ** 2 for a, b in zip(_PALETTE[index], (red, green, blue), strict=True)),
    )
    return _COLOURS[nearest] if nearest < 8 else f"bright-{_COLOURS[nearest - 8]}"


def segments(line: str) -> list[Segment]:
    """The line's visible text, cut where its style changes. Joined, the texts are `plain(line)`."""
    line = last_overwrite(line)
    if "\x1b" not in line:
        text = printable(line)
        return [Segment(text)] if text else []
    found: list[Segment] = []
    pen = _Pen()
    position = 0
    for match in _ESCAPE.finditer(line):
        _append(found, line[position : match.start()], pen)
        position = match.end()
        if match["final"] == "m":
            pen.apply(match["parameters"])
    _append(found, line[position:], pen)
    return found


def _append(found: list[Segment], raw: str, pen: _Pen) -> None:
    text = printable(raw)
    if not text:
        return
    classes = pen.classes()
    if found and found[-1].classes == classes:
        found[-1] = Segment(found[-1].text + text, classes)
    else:
        found.append(Segment(text, classes))


def plain(line: str) -> str:
    """The line as it reads: without colours, control characters shown as pictures."""
    line = last_overwrite(line)
    return printable(_ESCAPE.sub("", line) if "\x1b" in line else line)


def coloured(line: str) -> str:
    """The line for a terminal: its colours are kept and end with it, everything else that could steer is removed."""
    pieces = []
    position = 0
    for match in _ESCAPE.finditer(line := last_overwrite(line)):
        pieces.append(printable(line[position : match.start()]))
        if match["final"] == "m" and match["parameters"].replace(";", "").replace(":", "").isdigit():
            pieces.append(match[0])
        position = match.end()
    return "".join((*pieces, printable(line[position:]), "\x1b[0m" if position else ""))


def printable(text: str) -> str:
    return text if text.isascii() and text.isprintable() else text.translate(_PRINTABLE)


def last_overwrite(line: str) -> str:
    """What a terminal would show of a line that was drawn over with carriage returns, as progress bars are."""
    if "\r" not in line:
        return line
    return line.rstrip("\r").rpartition("\r")[2]
