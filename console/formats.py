"""How numbers, sizes and times are written on pages; each is a template filter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from appliance.launches.process_ends import how
from appliance.protocol import PhaseRecord
from console import authors


def gib(size: float | None) -> str:
    """Bytes in GiB; small sizes in MiB or KiB."""
    if size is None:
        return "unknown"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            number = size / scale
            return f"{number:,.0f} {unit}" if number >= 100 else f"{number:.1f} {unit}"
    return f"{size:.0f} bytes"


def seconds(duration: float | None) -> str:
    """A duration as short as it can be read: `34 ms`, `6.2 s`, `2 min 05 s`, `2 h 14 min`, `3 d 4 h`."""
    if duration is None:
        return ""
    if duration < 1:
        return f"{duration * 1000:.0f} ms"
    if duration < 60:
        return f"{duration:.1f} s"
    minutes, rest = divmod(int(duration), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def exact(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


@pass_context
def ago(context: Context, moment: float | None) -> Markup:
    """A time, relative; the exact one on hover. The page's script keeps it current."""
    if moment is None:
        return Markup("never")
    past = max(0.0, time.time() - moment)
    words = "just now" if past < 5 else f"{coarsest(past)} ago"
    return _time(context, moment, words, "ago")


@pass_context
def since(context: Context, moment: float | None) -> Markup:
    """How long ago a time was: `2 h 14 min`, kept current by the page's script."""
    if moment is None:
        return Markup("")
    return _time(context, moment, coarse(max(0.0, time.time() - moment)), "since")


@pass_context
def until(context: Context, moment: float | None) -> Markup:
    """How long it is until a time, kept current by the page's script."""
    if moment is None:
        return Markup("")
    return _time(context, moment, coarse(max(0.0, moment - time.time())), "until")


def coarse(duration: float) -> str:
    """A duration in whole seconds or larger."""
    return f"{int(duration)} s" if duration < 60 else seconds(duration)


def coarsest(duration: float) -> str:
    """A duration in its largest unit only."""
    for unit, scale in (("d", 86400), ("h", 3600), ("min", 60)):
        if duration >= scale:
            return f"{int(duration // scale)} {unit}"
    return f"{int(duration)} s"


def _time(context: Context, moment: float, words: str, kind: str) -> Markup:
    """In parts that are published (`live` in their context) the words are left to the page's script: else such a part
    would differ each second."""
    if context.get("live"):
        words = ""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
    return Markup('<time datetime="{}" title="{}" data-{}="{:.0f}">{}</time>').format(
        stamp, exact(moment), Markup(kind), moment, escape(words)
    )


def counted(count: int, one: str, many: str = "") -> str:
    """`1 request`, `1,200 requests`; `many` where it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def number(value: float | None) -> str:
    """With thousands separated: 41,300; one decimal below 10 where it has one."""
    if value is None:
        return "unknown"
    if value == int(value) or abs(value) >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def progress(phase: PhaseRecord) -> str:
    """A phase's progress: `3.1 GiB of 15.3 GiB`, `4 of 11 graphs`; empty if unknown."""
    done, total, unit = phase.progress.done, phase.progress.total, phase.progress.unit
    if not total:
        return ""
    if unit == "bytes":
        return f"{gib(done)} of {gib(total)}"
    return f"{done:,} of {total:,} {unit}".rstrip()


def browser(agent: str) -> str:
    """`Firefox on Linux`, as far as a User-Agent tells."""
    names = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
    systems = (("Windows",) * 2, ("Android",) * 2, ("iPhone",) * 2, ("Mac OS X", "macOS"), ("Linux",) * 2)
    name = next((name for mark, name in names if mark in agent), "A program")
    system = next((system for mark, system in systems if mark in agent), "")
    return f"{name} on {system}" if system else name


FILTERS: dict[str, Callable[..., Any]] = {
    "gib": gib,
    "seconds": seconds,
    "exact": exact,
    "ago": ago,
    "how_it_ended": how,
    "since": since,
    "until": until,
    "counted": counted,
    "number": number,
    "percent": percent,
    "progress": progress,
    "browser": browser,
    "by": authors.by,
}
