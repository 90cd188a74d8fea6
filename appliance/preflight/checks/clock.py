"""The clock is not far behind; logs, keys and rollback depend on it. Judged by file dates, since there may be "
"no network."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import appliance
from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

DAY_S = 86_400.0
# Before the first release of this program nothing of it can have been installed.
FIRST_RELEASE = time.mktime((2026, 11, 1, 0, 0, 0, 0, 0, 0))


def run(subject: Subject) -> Iterator[Finding]:
    now = subject.here.now
    newest, what = max(_witnesses(subject), default=(0.0, ""))
    if newest - now <= DAY_S:
        return
    yield Finding(
        id="clock-behind",
        severity=Severity.WARNING,
        message=f"The clock says {_date(now)}, but {what} is dated {_date(newest)}: the clock is "
        f"{(newest - now) / DAY_S:,.0f} days or more behind.",
        field="clock",
        value=_date(now),
        evidence=(what,),
        fix=Fix(
            text="Set the clock. Otherwise launches are out of order, and certificates and sessions may be rejected.",
            command="timedatectl set-time 'YYYY-MM-DD HH:MM:SS'",
        ),
    )


def _witnesses(subject: Subject) -> Iterator[tuple[float, str]]:
    """Files that cannot be from the future. The model's may be odd for other reasons: each is one voice only."""
    yield FIRST_RELEASE, "the first release of this program"
    for path, what in (
        (Path(appliance.__file__), "this program"),
        (_newest_launch(subject.context.home), "the newest launch"),
    ):
        if path is not None and (changed := _changed(path)):
            yield changed, f"{what} ({path})"


def _newest_launch(home: Home) -> Path | None:
    newest = next(iter(Catalogue(home).ids()), None)
    return home.launch(newest) if newest else None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _date(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} seconds after 1970"
