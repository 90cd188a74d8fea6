"""The engine that the profile names is one that this installation can start."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity
from appliance.vllm.program import PROGRAM


def run(subject: Subject) -> Iterator[Finding]:
    if subject.profile.engine == "native" or subject.vllm is not None:
        return
    yield Finding(
        id="engine-not-installed",
        severity=Severity.ERROR,
        message="The profile asks for vLLM, and there is none in this installation.",
        field="engine",
        value=subject.profile.engine,
        fix=Fix(
            text=f"Use the native engine; or install vLLM and name its command with {PROGRAM}.",
            patch={"engine": "native"},
        ),
    )
