"""A backend that the profile names can serve its op on this device with this model."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    for key, refusal in subject.effective.refusals.items():
        text = str(refusal)
        yield Finding(
            id="backend-refused",
            severity=Severity.ERROR,
            message=text[:1].upper() + text[1:] + ".",
            field=key,
            value=refusal.requested,
            evidence=tuple(
                f"{verdict.backend}: {verdict.reason or 'can run'}" + (f" ({verdict.source})" if verdict.source else "")
                for verdict in refusal.verdicts
            ),
            fix=Fix(text="Let Ingot choose.", patch={key: None}) if refusal.requested != "auto" else None,
        )
