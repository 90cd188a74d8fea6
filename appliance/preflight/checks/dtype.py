"""The number formats that the profile names are ones that device and engine compute in."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint.memory import CACHE_DTYPES
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

CACHE_IN_8_BITS = tuple(name for name, dtype in CACHE_DTYPES.items() if dtype == "float8_e4m3fn")


def run(subject: Subject) -> Iterator[Finding]:
    profile, gpu = subject.profile, subject.device.gpu
    if gpu is not None and profile.dtype == "bfloat16" and gpu.compute_capability < (8, 0):
        major, minor = gpu.compute_capability
        yield Finding(
            id="dtype-unsupported",
            severity=Severity.ERROR,
            message=f"{gpu.name} has no bfloat16: its compute capability is {major}.{minor}, and 8.0 is needed.",
            field="dtype",
            value="bfloat16",
            fix=Fix(text="Use float16.", patch={"dtype": "float16"}),
        )
    dtype = subject.effective["dtype"].value
    if profile.kv_cache_dtype not in ("auto", dtype, *CACHE_IN_8_BITS):
        yield Finding(
            id="kv-cache-dtype-unsupported",
            severity=Severity.ERROR,
            message=f"The native engine keeps its cache in {dtype}, as the model, or in fp8 (e4m3), and not in "
            f"{profile.kv_cache_dtype}.",
            field="kv-cache-dtype",
            value=profile.kv_cache_dtype,
            fix=Fix(text="Let the cache follow `dtype`.", patch={"kv-cache-dtype": None}),
        )
