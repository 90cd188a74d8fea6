"""The backends named in the profile can run on this device with this model, and every other op has a backend too."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import replace

from appliance.plan.effective import Effective, why_unused
from appliance.preflight.subject import Subject
from appliance.profile.schema import Profile
from appliance.protocol import Finding, Fix, Severity
from kernels.context import Context
from kernels.selection import AUTO, BackendRefusedError, verdicts


def run(subject: Subject) -> Iterator[Finding]:
    profile, effective = subject.profile, subject.effective
    cache = [refusal for refusal in effective.refusals if _for_its_cache(refusal, effective.context)]
    for refusal in effective.refusals:
        if refusal not in cache:
            yield as_finding(refusal, at=refusal.place if refusal.place in profile.site_backends else "")
    if cache:
        yield _cache_refused(cache, effective["kv-cache-dtype"].value)
    yield from _unknown_sites(profile, effective)
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


def _unknown_sites(profile: Profile, effective: Effective) -> Iterator[Finding]:
    """Places that the profile names and the model does not have: a wrong number, or another model's."""
    known = [place.key for explanation in effective.selection for place in explanation.places]
    for name, backend in profile.site_backends.items():
        if name in known or not known:  # another engine's, which has no sites
            continue
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        meant = f"Did you mean {nearest[0]}? " if nearest else ""
        yield Finding(
            id="site-unknown",
            severity=Severity.ERROR,
            message=f"The model has no site {name}.",
            field=f"site-backends.{name}",
            value=backend,
            fix=Fix(
                text=f"{meant}`ingot explain` lists the model's sites. Otherwise remove it.",
                patch={f"site-backends.{name}": None},
            ),
        )


def _for_its_cache(refusal: BackendRefusedError, context: Context) -> bool:
    """Whether it is only the format of the KV cache that leaves the op without a backend."""
    if refusal.requested != AUTO or context.kv_cache_dtype in ("", context.dtype):
        return False
    following = replace(context, kv_cache_dtype=context.dtype)
    return any(verdict.usable for verdict in verdicts(refusal.op, following))


def _cache_refused(refusals: list[BackendRefusedError], wanted: str) -> Finding:
    return Finding(
        id="kv-cache-dtype-unsupported",
        severity=Severity.ERROR,
        message=f"This model's KV cache cannot be {wanted}.",
        field="kv-cache-dtype",
        value=wanted,
        evidence=tuple(
            f"{refusal.op.name}, {verdict.backend}: {verdict.reason}"
            for refusal in refusals
            for verdict in refusal.verdicts
        ),
        fix=Fix(text="Let the KV cache follow `dtype`.", patch={"kv-cache-dtype": None}),
    )


def as_finding(refusal: BackendRefusedError, at: str = "") -> Finding:
    """`at` is the site for which the profile asks for it, if it does so by site."""
    text = str(refusal)
    field = f"site-backends.{at}" if at else f"backends.{refusal.op.setting}" if refusal.op.setting else None
    return Finding(
        id="backend-refused",
        severity=Severity.ERROR,
        message=text[:1].upper() + text[1:] + ".",
        field=field,
        value=refusal.requested if field else None,
        evidence=tuple(
            f"{verdict.backend}: {verdict.reason or 'can run'}" + (f" ({verdict.source})" if verdict.source else "")
            for verdict in refusal.verdicts
        ),
        fix=_fix(refusal, field),
    )


def _fix(refusal: BackendRefusedError, field: str | None) -> Fix:
    if refusal.requested == AUTO:
        return Fix(text="No backend can run here. The evidence lists what each one needs.")
    remedy = next((v.remedy for v in refusal.verdicts if v.backend == refusal.requested), "")
    usable = any(verdict.usable for verdict in refusal.verdicts)
    text = (
        "Let Ingot choose the backend."
        if usable
        else "No other backend can run here either. The evidence lists what each one needs."
    )
    return Fix(text=f"{text} {remedy}".rstrip(), patch={field: None} if usable and field else None)
