"""The engine that the profile names is one that this installation can start."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    if subject.profile.engine == "native":
        return
    yield Finding(
        id="engine-not-installed",
        severity=Severity.ERROR,
        message=f"This installation starts the native engine only, and the profile asks for {subject.profile.engine}.",
        field="engine",
        value=subject.profile.engine,
        fix=Fix(
            text="Use the native engine, or run the profile where Ingot comes with vLLM.", patch={"engine": "native"}
        ),
    )
