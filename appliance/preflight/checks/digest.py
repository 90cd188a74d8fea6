"""The model is the one whose digest the profile names."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint.digest import checkpoint_digest
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    expected = subject.profile.model.digest
    if expected is None or (found := checkpoint_digest(subject.folder)) == expected:
        return
    yield Finding(
        id="digest-differs",
        severity=Severity.ERROR,
        message=f"The folder {subject.profile.model.path} is not the model that the profile names by its digest.",
        field="model.digest",
        value=expected,
        evidence=(f"found: {found}",),
        fix=Fix(
            text="Copy the expected model there; or, if this is the one to run, take its digest into the profile.",
            patch={"model.digest": found},
        ),
    )
