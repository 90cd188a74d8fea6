"""Blocks of the cache hold whole entries, where the model keeps entries of several tokens."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.plan.effective import block_size_for
from appliance.preflight.subject import Subject
from appliance.profile.schema import BY_KEY
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    """The default becomes what the model needs; another size was meant."""
    size, multiple = subject.profile.block_size, subject.config.block_multiple
    if size % multiple == 0 or size == BY_KEY["block-size"].default:
        return
    fitting = block_size_for(subject.config)
    yield Finding(
        id="block-size-cuts-entries",
        severity=Severity.ERROR,
        message=f"block-size is {size}, but this model keeps entries of up to {multiple} tokens, which a block must "
        "hold whole.",
        field="block-size",
        value=size,
        evidence=(str(subject.folder / "config.json"),),
        fix=Fix(text=f"Use {fitting}.", patch={"block-size": fitting}),
    )
