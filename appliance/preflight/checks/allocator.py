"""Torch's allocator has no setting known to break CUDA graphs over several GPUs.

With expandable segments its memory comes from CUDA's virtual memory management, which cudaIpcGetMemHandle refuses; the
all-reduce that shares its graph buffers between GPUs then ends the launch with "invalid argument".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from appliance.preflight.subject import Subject
from appliance.profile.schema import Profile
from appliance.protocol import Finding, Fix, Severity

SOURCE = "https://github.com/vllm-project/vllm/issues/42609"
# Torch reads the first of them that is there, however empty, and no other.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def run(subject: Subject) -> Iterator[Finding]:
    profile = subject.profile
    ours = profile.engine_options.environment
    variable = _read_by_torch({**subject.context.environ, **ours})
    if variable is None or not _shares_graphs(profile):
        return
    in_profile = variable in ours
    value = ours[variable] if in_profile else subject.context.environ[variable]
    if "expandable_segments:true" not in value.lower().replace(" ", ""):
        return
    field = f"vllm.environment.{variable}" if in_profile else variable
    yield Finding(
        id="allocator-breaks-graphs",
        severity=Severity.ERROR,
        message=f"{variable} turns expandable segments on, which breaks CUDA graphs over several GPUs.",
        field=field,
        value=value,
        evidence=(SOURCE,),
        fix=Fix(text="Remove it.", patch={field: None})
        if in_profile
        else Fix(text="Remove it from the environment of `ingot serve`.", command=f"unset {variable}"),
    )


def _read_by_torch(environ: Mapping[str, str]) -> str | None:
    return next((name for name in VARIABLES if name in environ), None)


def _shares_graphs(profile: Profile) -> bool:
    """Whether several GPUs share buffers of CUDA graphs."""
    if profile.tensor_parallel_size == 1 or profile.enforce_eager:
        return False
    return not profile.engine_options.extra_args.get("disable-custom-all-reduce")
