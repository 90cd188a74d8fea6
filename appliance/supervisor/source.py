"""Which profile a launch runs: a file named on the command line, the active one, or else the bundled model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from appliance.given_file import read_given
from appliance.home import Home
from appliance.profile import document as documents
from appliance.profile.active import bundled_profile, read_active
from appliance.profile.schema import ProfileError
from appliance.profile.text import MAX_BYTES
from appliance.protocol import Finding, Fix, Severity


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """`problems` instead of a usable document: the launch is then refused, with these as its findings. `asked`: a
    person wants this launch; otherwise it may be the next round of a loop."""

    launch: str
    revision: str = ""
    document: dict[str, Any]
    problems: tuple[Finding, ...] = ()
    asked: bool = False


def read_source(home: Home, file: Path | None) -> Source:
    """Never raises for a bad document: the launch reports what is wrong with it, like any other failure."""
    asked = sys.stdin is not None and sys.stdin.isatty()
    try:
        if file is not None:
            document = documents.parse(read_given(file, MAX_BYTES))
            return Source(launch=home.new_launch_id(), document=document, asked=asked)
        active = read_active(home)
    except ProfileError as error:
        problems = [_finding(p.field, p.value, p.message, p.remedy) for p in error.problems]
        return Source(launch=home.new_launch_id(), document={}, problems=tuple(problems))
    except OSError as error:
        message = f"Cannot read the profile file: {error.strerror}."
        problem = _finding("", str(file), message, "Check the file's name and permissions.")
        return Source(launch=home.new_launch_id(), document={}, problems=(problem,))
    if active is None:
        return Source(launch=home.new_launch_id(), document=bundled_profile(), asked=asked)
    # The console chooses the id, so that it can follow the launch; a restart of the same revision is a new launch.
    chosen = active.launch if active.launch is not None and not home.launch(active.launch).exists() else None
    return Source(
        launch=chosen or home.new_launch_id(),
        revision=active.revision,
        document=active.document,
        asked=asked or chosen is not None,
    )


def _finding(field: str, value: Any, message: str, remedy: str) -> Finding:
    return Finding(
        id="profile-invalid",
        severity=Severity.ERROR,
        message=message,
        field=field or None,
        value=value,
        fix=Fix(text=remedy),
    )
