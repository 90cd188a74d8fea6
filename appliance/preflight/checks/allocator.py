"""Torch's allocator is not set in a way that is known to break CUDA graphs over several GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


def run(subject: Subject) -> Iterator[Finding]:
    profile = subject.profile
    in_profile = profile.vllm.environment.get(VARIABLE)
    setting = in_profile or subject.context.environ.get(VARIABLE, "")
    if "expandable_segments:true" not in setting.lower().replace(" ", ""):
        return
    if profile.tensor_parallel_size == 1 or profile.enforce_eager:
        return
    field = f"vllm.environment.{VARIABLE}" if in_profile else VARIABLE
    yield Finding(
        id="allocator-breaks-graphs",
        severity=Severity.ERROR,
        message=f"{VARIABLE} turns expandable segments on, which breaks CUDA graphs over several GPUs.",
        field=field,
        value=setting,
        fix=Fix(text="Remove it.", patch={field: None})
        if in_profile
        else Fix(text="Remove it from the environment of `ingot serve`.", command=f"unset {VARIABLE}"),
    )
