"""What vLLM would compile at its first start comes from a pack, if this machine has any."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity
from appliance.vllm.cache_packs.store import OF_A_PLACE, VARIABLE, Judgement, Verdict

MOST_REASONS = 3
PACK = "Copy it again with `ingot cache add`, or remove its folder."
PLACE = f"Correct {VARIABLE}, or the permissions of the folder."
HOW = "Nothing to do: it is compiled once. `ingot cache pack` then makes a pack of it."


def run(subject: Subject) -> Iterator[Finding]:
    found = subject.cache_packs
    for error in found.unreadable:
        yield Finding(
            id="cache-pack-unreadable",
            severity=Severity.WARNING,
            message=f"Some cache packs are not used: {error}.",
            fix=Fix(text=PLACE if error.code in OF_A_PLACE else PACK),
        )
    if found.chosen is not None:
        yield _warm(found) if found.chosen.fits else _cold(found.chosen)
    if subject.profile.forbids_jit and found.pack is None:
        yield Finding(
            id="jit-forbidden-without-pack",
            severity=Severity.WARNING,
            message="The profile forbids compiling, and no cache pack fits: unless earlier launches left everything in "
            "the caches here, this one fails at the first kernel that is missing.",
            field="jit",
            value=subject.profile.jit,
            fix=Fix(text="Add a pack that fits (`ingot cache add`), or allow compiling.", patch={"jit": None}),
        )


def _warm(found: Judgement) -> Finding:
    assert found.pack is not None
    pack = found.pack.pack
    return Finding(
        id="caches-warm",
        severity=Severity.INFO,
        message=f"vLLM starts warm: its compiled code comes from the cache pack {pack.name}.",
        value=pack.name,
        evidence=(f"{pack.counted} in {found.pack.path}",),
    )


def _cold(nearest: Verdict) -> Finding:
    pack, reasons = nearest.folder.pack, nearest.reasons
    more = f", and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
    minutes = max(1, round(pack.cold_s / 60))
    how_long = f" A start that compiled all of it took about {minutes} min." if nearest.of_model else ""
    return Finding(
        id="caches-cold",
        severity=Severity.INFO,
        message=f"No cache pack fits, so that vLLM compiles what is not compiled here yet. {pack.name}, the nearest, "
        f"is not used: {'; '.join(reasons[:MOST_REASONS])}{more}.{how_long}",
        value=pack.name,
        evidence=reasons,
        fix=Fix(text=HOW),
    )
