"""What the profile service refuses, each with what happened and what to do; `web` gives every kind its HTTP status and
`profile_command` its exit code."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from appliance.profile.document import Change
from appliance.profile.schema import Problem
from appliance.protocol import Finding, Severity
from console.authors import done_by


class ProfileRefusal(Exception):
    """The base of all refusals: a message, a remedy, and the field and value that they are about."""

    code = ""

    def __init__(self, message: str, remedy: str, *, field: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.field = field
        self.value = value

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"


class NotFound(ProfileRefusal):
    """There is no such profile or revision. `in_terminal` is the remedy where there are no pages to look at."""

    def __init__(
        self, message: str, remedy: str, *, in_terminal: str, field: str | None = None, value: Any = None
    ) -> None:
        super().__init__(message, remedy, field=field, value=value)
        self.in_terminal = in_terminal


class NoState(ProfileRefusal):
    """Nothing has been set up in the state folder."""

    code = "no-state"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"There are no profiles in {folder}: no console has run on this state folder.",
            "Start one with `ingot up`, or set INGOT_HOME to another state folder.",
            field="INGOT_HOME",
            value=str(folder),
        )


class NameTaken(ProfileRefusal):
    """Another profile has the name."""

    code = "name-taken"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"There is already a profile named {name}.",
            "Choose another name, or save a new revision of that profile.",
            field="name",
            value=name,
        )


class InvalidDocument(ProfileRefusal):
    """The document cannot be a profile; `problems` names everything that is wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        first = problems[0]
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        where = f"{first.field}: " if first.field else ""
        super().__init__(f"{where}{first.message}{more}", first.remedy, field=first.field or None, value=first.value)
        self.problems = problems


class Stale(ProfileRefusal):
    """Somebody saved a newer revision than the one that was edited. `changes` lead from theirs to this one."""

    code = "newer-revision"

    def __init__(self, name: str, *, base: int, latest: int, author: str, saved: float, changes: list[Change]) -> None:
        saved_by = done_by(f"{name} r{latest} was saved", author)
        super().__init__(
            f"{saved_by} while you were editing r{base}. Nothing was overwritten.",
            f"Compare your version with r{latest}, then save it as r{latest + 1} or discard it.",
            field="base",
            value=base,
        )
        self.latest = latest
        self.author = author
        self.saved = saved
        self.changes = changes


class InUse(ProfileRefusal):
    """The active profile can be neither deleted nor renamed."""

    code = "profile-active"


class UnderWay(ProfileRefusal):
    """Another activation, or a restore, is in progress; `code` says which, `value` of what."""

    def __init__(self, what: str, *, code: str) -> None:
        self.code = code
        doing = "restored" if code == "restore-running" else "activated"
        super().__init__(f"{what} is being {doing}.", "Wait until that is done, then try again.", value=what)


class Refused(ProfileRefusal):
    """Preflight found errors: the engine was not affected. `launch` is the attempt's, where one was recorded.
    `transient`: the errors may all be gone by the launch, so that it is worth trying."""

    def __init__(self, profile: str, revision: int, findings: list[Finding], launch: str | None) -> None:
        errors = errors_of(findings)
        first = errors[0]
        more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(
            f"{profile} r{revision} was not activated: {first.message}{more} The engine was not affected.",
            first.fix.text if first.fix else "Change the profile, then activate it again.",
            field=first.field,
            value=first.value,
        )
        self.profile = profile
        self.revision = revision
        self.findings = findings
        self.launch = launch
        self.transient = all(error.transient for error in errors)


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


class Undecided(ProfileRefusal):
    """Requests are running, and it is not decided whether to wait for them; nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "Add --when-finished to wait for them, or --now to end them.", field="when")


class EngineUnreachable(ProfileRefusal):
    """The revision is active, but the engine could not be restarted."""


class NotWritten(ProfileRefusal):
    """The state folder could not be written; nothing was changed."""
