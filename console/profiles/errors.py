"""What the profile service refuses, each with what happened and what to do; `routes` gives every kind its HTTP status
and `command` its exit code."""

from __future__ import annotations

from typing import Any

from appliance.profile.document import Change
from appliance.profile.schema import Problem
from appliance.protocol import Finding


class ProfileRefusal(Exception):
    """The base of all refusals: a message, a remedy, and the field and value that they speak of."""

    def __init__(self, message: str, remedy: str, *, field: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.field = field
        self.value = value

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"


class NotFound(ProfileRefusal):
    """There is no such profile or revision."""


class NameTaken(ProfileRefusal):
    """Another profile has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"There is a profile named {name} already.",
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

    def __init__(self, name: str, *, base: int, latest: int, author: str, saved: float, changes: list[Change]) -> None:
        by = f" by {author}" if author else ""
        super().__init__(
            f"{name} r{latest} was saved{by} while r{base} was being edited. Nothing was overwritten.",
            f"Compare yours with r{latest}, then save it as r{latest + 1} or let it go.",
            field="base",
            value=base,
        )
        self.latest = latest
        self.author = author
        self.saved = saved
        self.changes = changes


class InUse(ProfileRefusal):
    """The active profile can be neither deleted nor renamed."""


class UnderWay(ProfileRefusal):
    """Another activation has not ended yet."""

    def __init__(self, what: str, since: float) -> None:
        super().__init__(
            f"The activation of {what} is under way.", "Wait until it has ended, then try again.", value=what
        )
        self.what = what
        self.since = since


class Refused(ProfileRefusal):
    """Preflight found errors: the engine was not touched. `launch` is the attempt's, where one was recorded."""

    def __init__(self, profile: str, revision: int, findings: list[Finding], launch: str | None) -> None:
        errors = [finding for finding in findings if finding.severity == "error"]
        first = errors[0]
        more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(
            f"{profile} r{revision} was not activated: {first.message}{more} The engine was not touched.",
            first.fix.text if first.fix else "Change the profile, then activate it again.",
            field=first.field,
            value=first.value,
        )
        self.profile = profile
        self.revision = revision
        self.findings = findings
        self.launch = launch


class Undecided(ProfileRefusal):
    """Requests are running, and nobody has said whether to wait for them; nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "Add --when-finished to wait for them, or --now to end them.", field="when")


class EngineUnreachable(ProfileRefusal):
    """The revision is active, but what runs the engine did not do as it was told."""


class NotWritten(ProfileRefusal):
    """The state folder could not be written; nothing was changed."""
