"""A row of the catalogue: how a known cause shows itself, what it means, and how to fix it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.diagnosis.shell_words import operand, own_command
from appliance.engines import engine_named
from appliance.protocol import Fix

Groups = Mapping[str, str]
Derived = Callable[[Groups], Any]
UNKNOWN = "?"
WHOLE_COMMAND = "command"  # the group that is a whole command; every other is a word of one
PLACEHOLDER = re.compile(r"\{(\w{1,40})\}")
CAST = "Run from a cast, which compiles nothing. Otherwise: "
NAMING = ("port", "pid", "xid")
# What a pattern says that is no word of the text: escapes, and the names of its groups.
NOT_WORDS = re.compile(r"\\.|\?P?<[^>]{1,40}>|\{[\d,]{1,9}\}")
WORD = re.compile(r"[a-z0-9]{3,}")
# What a captured value and a matching place count for, in letters.
CAPTURED = 3
PLACED = 16
MOST_BYTES = 1 << 44


@dataclass(frozen=True)
class Cause:
    """`signs` are lower-case phrases of which one must stand in an exception's text (its type and message) or in a
    log line; each run of letters (or digits) in it stands there as a whole one. `pattern` must match there as
    well, where there is one, and `details` may; their named groups can be used in `summary`, `fix` and `command`, as in
    "{needed} GiB". `where` must match the places of the traceback, one a line, the innermost last.

    A value of `patch` that is callable is computed from the groups and from what the launch was set to; one that comes
    to None is left out. A number never stands there as such: it could raise what it is meant to lower.

    `command` mends it; `look` is a command that changes nothing, and only shows more.
    `sets` and `unsets` mend a launch that is not Ingot's: arguments of `vllm serve`, in which groups can be used, and
    the variables of the environment that it must not have.

    `line`: it also counts in a line that no logger marked as an error, as other programs write them.
    `warning`: even in one that a logger marked as a warning.
    `deadly`: no process goes on after it, so that it counts after the engine was ready, too.
    `aside`: such a line may stand in a healthy log; it tells why something ended, never that it did.
    `compiles`: a kernel is compiled at run time, which an engine that runs from a cast never does.
    `mute`: its line says that it happened, and nothing of why: it is not quoted.
    `vague`: what else the log says of the same failure is better, if it says anything.
    `broad`: it fits whatever a library says of any kind of failure, such as a value that a validation refused; another
    row that fits the same text knows more.
    """

    family: str
    name: str
    signs: tuple[str, ...]
    summary: str
    fix: str
    pattern: str = ""
    details: str = ""
    where: str = ""
    patch: Mapping[str, Any | Derived] | None = None
    command: str | None = None
    look: str | None = None
    sets: Mapping[str, str | bool] | None = None
    unsets: tuple[str, ...] = ()
    line: bool = False
    warning: bool = False
    deadly: bool = False
    aside: bool = False
    compiles: bool = False
    mute: bool = False
    vague: bool = False
    broad: bool = False

    # Compiled when they are first needed: a diagnosis begins within a tenth of a second and tries few rows.
    @functools.cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE | re.DOTALL)

    @functools.cached_property
    def compiled_details(self) -> re.Pattern[str]:
        return re.compile(self.details, re.IGNORECASE | re.DOTALL)

    @functools.cached_property
    def compiled_where(self) -> re.Pattern[str]:
        return re.compile(self.where)

    def match(self, text: str, lowered: str, places: str = "") -> dict[str, str] | None:
        """The named groups; None where this is not the cause."""
        if self.signs:
            for sign in self.signs:  # most rows end here: a loop is twice as fast as any()
                if sign in lowered:
                    break
            else:
                return None
        if self.where and not self.compiled_where.search(places):
            return None
        found = self.compiled.search(text)
        if found is None:
            return None
        groups = {name: (value or "").strip() for name, value in found.groupdict().items()}
        if self.details:
            more = self.compiled_details.search(text)
            groups |= dict.fromkeys(self.compiled_details.groupindex, "")
            groups |= {name: (value or "").strip() for name, value in more.groupdict().items()} if more else {}
        if other := groups.pop("also", ""):  # another place where the first group may stand
            first = next(iter(groups))
            groups[first] = groups[first] or other
        return {name: value or UNKNOWN for name, value in groups.items()}

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """The fixed words of its pattern."""
        return frozenset(WORD.findall(NOT_WORDS.sub(" ", self.pattern.lower())))

    def fit(self, lowered: str, groups: Groups) -> tuple[bool, int]:
        """How closely it fits a text that it matches: by the letters of its own words there, by what it captured, and
        by the place that it asks for."""
        sign = max((sign for sign in self.signs if sign in lowered), key=len, default="")
        words = {word for word in self.words if word in lowered} | set(WORD.findall(sign))
        captured = sum(value != UNKNOWN for value in groups.values())
        return not self.broad, sum(map(len, words)) + CAPTURED * captured + PLACED * bool(self.where)

    def places_in(self, text: str) -> tuple[int, ...]:
        """Where in a text that it matches its sign stands, and what its pattern captured."""
        lowered = text.lower()
        places = [at for sign in self.signs if (at := lowered.find(sign)) >= 0][:1]
        for pattern in (self.compiled, self.compiled_details):
            if (found := pattern.search(text)) is not None:
                places += [found.start(name) for name, value in found.groupdict().items() if value]
        return tuple(places)

    def summary_for(self, groups: Groups) -> str:
        return self.summary.format_map(_grouped(groups))

    def fix_for(self, groups: Groups, own: Groups) -> Fix:
        """`own` is what the launch was set to, as far as it is known, under the keys of a profile."""
        known = {**own, **groups}
        values = {key: value(known) if callable(value) else value for key, value in (self.patch or {}).items()}
        patch = {
            key: value for key, value in values.items() if value is not None or not callable((self.patch or {})[key])
        }
        text = self.fix.format_map(_grouped(groups))
        return Fix(
            text=f"{CAST}{text}"
            if self.compiles and "engine" in own and engine_named(own["engine"]).sealable
            else text,
            patch=patch or None,
            command=_filled(self.command, groups),
            look=_filled(self.look, groups),
        )


def _filled(command: str | None, groups: Groups) -> str | None:
    """Without the parts whose groups are not known, or could be no words of a command. What stands in a log is
    quoted, whatever it holds; a whole command is told only where it is one of Ingot's."""
    if command is None:
        return None
    known = {name: value for name, value in groups.items() if value != UNKNOWN}
    made = {name: (own_command if name == WHOLE_COMMAND else operand)(value) for name, value in known.items()}
    words = {name: word for name, word in made.items() if word is not None}
    parts = [part for part in command.split("; ") if words.keys() >= set(PLACEHOLDER.findall(part))]
    return "; ".join(parts).format_map(words) or None


def _grouped(groups: Groups) -> dict[str, str]:
    """Whole numbers with their digits grouped: 8192 as 8,192. Those that only name something stay as they are."""
    return {name: value if name in NAMING else _with_commas(value) for name, value in groups.items()}


def _with_commas(value: str) -> str:
    return f"{int(value):,}" if value.isdecimal() and len(value) > 3 and value[0] != "0" else value


def number(name: str) -> Derived:
    """The whole number that a group holds."""

    def value(groups: Groups) -> int | None:
        digits = groups.get(name, "").replace(",", "").replace("_", "")
        return int(digits) if digits.isdecimal() and int(digits) > 0 else None

    return value


def share(part: str, whole: str, *, least: float = 0.1) -> Derived:
    """What one group is of another, in hundredths, and a hundredth less; None under `least`, where it would not
    help."""

    def value(groups: Groups) -> float | None:
        try:
            found = int(float(groups[part]) / float(groups[whole]) * 100 - 1) / 100
        except (KeyError, ValueError, ZeroDivisionError, OverflowError):
            return None
        return found if least <= found < 1 else None

    return value


def instead(key: str, of: str, then: str) -> Derived:
    """Another value, where the launch was set to this one; None where it was not, or it is not known."""
    return lambda own: then if own.get(key) == of else None


def when(group: str, then: str) -> Derived:
    """A value where that group stands in the text."""
    return lambda own: then if own.get(group, UNKNOWN) != UNKNOWN else None


def halved(key: str) -> Derived:
    """Half of what the launch was set to; None where that is not known, or is one."""

    def value(own: Groups) -> int | None:
        half = int(own[key]) // 2 if own.get(key, "").isdecimal() else 0
        return half or None

    return value


def unless_beyond_any_host(asked: str, then: Derived) -> Derived:
    """Another value; None where that group is more bytes than a machine has: the request itself is wrong."""

    def value(own: Groups) -> Any:
        digits = own.get(asked, "")
        return None if digits.isdecimal() and int(digits) > MOST_BYTES else then(own)

    return value


def moved(key: str, by: float, *, least: float = 0.3, most: float = 0.95) -> Derived:
    """A share that the launch was set to, so much larger or smaller; None where it is not known, or at its end."""

    def value(own: Groups) -> float | None:
        try:
            now = float(own[key])
        except (KeyError, ValueError):
            return None
        then = round(min(max(now + by, least), most), 2)
        return then if (then - now) * by > 0 else None

    return value


def largest_divisor(of: str, at_most: str) -> Derived:
    """The largest number under the second group that divides the first: a tensor-parallel size that fits the heads."""

    def value(groups: Groups) -> int | None:
        try:
            whole, limit = int(groups[of]), int(groups[at_most])
        except (KeyError, ValueError):
            return None
        fitting = [size for size in range(1, min(whole, limit, 1024)) if whole % size == 0]
        return fitting[-1] if fitting else None

    return value
