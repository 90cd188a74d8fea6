"""The document is a valid profile."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.profile.document import check
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    for problem in check(subject.context.document):
        yield Finding(
            id="profile-invalid",
            severity=Severity.ERROR,
            message=f"{problem.field}: {problem.message}",
            field=problem.field,
            value=problem.value,
            fix=Fix(text=problem.remedy, patch=problem.patch),
        )
