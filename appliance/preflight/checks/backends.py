"""The backends named in the profile can run on this device with this model, and every other op has a backend too."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.plan.effective import why_unused
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity
from kernels.selection import AUTO, BackendRefusedError


def run(subject: Subject) -> Iterator[Finding]:
    profile, effective = subject.profile, subject.effective
    for refusal in effective.refusals:
        yield as_finding(refusal)
    asked = {explanation.op.setting for explanation in effective.selection}
    for name, requested in profile.backends.items():
        if requested != AUTO and name not in asked:
            yield Finding(
                id="setting-unused",
                severity=Severity.WARNING,
                message=f"backends.{name} has no effect: {why_unused(name, effective.context)}.",
                field=f"backends.{name}",
                value=requested,
                fix=Fix(text="Remove it.", patch={f"backends.{name}": None}),
            )


def as_finding(refusal: BackendRefusedError) -> Finding:
    text = str(refusal)
    return Finding(
        id="backend-refused",
        severity=Severity.ERROR,
        message=text[:1].upper() + text[1:] + ".",
        field=f"backends.{refusal.op.setting}" if refusal.op.setting else None,
        value=refusal.requested if refusal.op.setting else None,
        evidence=tuple(
            f"{verdict.backend}: {verdict.reason or 'can run'}" + (f" ({verdict.source})" if verdict.source else "")
            for verdict in refusal.verdicts
        ),
        fix=_fix(refusal),
    )


def _fix(refusal: BackendRefusedError) -> Fix:
    if refusal.requested == AUTO:
        return Fix(text="No backend can run here. The evidence lists what each one needs.")
    remedy = next((v.remedy for v in refusal.verdicts if v.backend == refusal.requested), "")
    usable = any(verdict.usable for verdict in refusal.verdicts)
    text = (
        "Let Ingot choose the backend."
        if usable
        else "No other backend can run here either. The evidence lists what each one needs."
    )
    return Fix(text=f"{text} {remedy}".rstrip(), patch={f"backends.{refusal.op.setting}": None} if usable else None)
