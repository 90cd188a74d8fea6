"""The model's digest matches the profile's."""

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
        message=f"The model in {subject.profile.model.path} does not match the digest in the profile.",
        field="model.digest",
        value=expected,
        evidence=(f"found: {found}",),
        fix=Fix(
            text="Copy the expected model there, or put this model's digest into the profile.",
            patch={"model.digest": found},
        ),
    )
