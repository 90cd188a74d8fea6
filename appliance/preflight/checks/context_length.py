"""max-model-len is no longer than the model was made for."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    wanted, longest = subject.profile.max_model_len, subject.config.context_length
    if wanted is None or wanted <= longest:
        return
    yield Finding(
        id="context-too-long",
        severity=Severity.ERROR,
        message=f"max-model-len is {wanted}, and the model was made for {longest} tokens: beyond them it writes noise.",
        field="max-model-len",
        value=wanted,
        evidence=(f"config.json: max_position_embeddings {subject.config.max_position_embeddings}",),
        fix=Fix(text=f"Use {longest}.", patch={"max-model-len": longest}),
    )
