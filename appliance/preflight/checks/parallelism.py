"""The model is not asked to run over more devices than the native engine can use."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    size = subject.profile.tensor_parallel_size
    if size > 1:
        yield Finding(
            id="tensor-parallel-unsupported",
            severity=Severity.ERROR,
            message=f"The native engine runs on one device so far; the profile asks for {size}.",
            field="tensor-parallel-size",
            value=size,
            fix=Fix(text="Run it on one device.", patch={"tensor-parallel-size": None}),
        )
