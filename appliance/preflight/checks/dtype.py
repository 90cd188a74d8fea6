"""The device and the engine support the number formats in the profile."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint import index_keys
from appliance.checkpoint.memory import CACHE_DTYPES
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

CACHE_IN_8_BITS = tuple(name for name, dtype in CACHE_DTYPES.items() if dtype == "float8_e4m3fn")
FIRST_WITH_BFLOAT16 = (8, 0)


def run(subject: Subject) -> Iterator[Finding]:
    profile = subject.profile
    for gpu in subject.gpus[:1]:
        if profile.dtype == "bfloat16" and gpu.compute_capability < FIRST_WITH_BFLOAT16:
            major, minor = gpu.compute_capability
            yield Finding(
                id="dtype-unsupported",
                severity=Severity.ERROR,
                message=f"{gpu.name} does not support bfloat16: its compute capability is {major}.{minor}, and "
                "8.0 is required.",
                field="dtype",
                value="bfloat16",
                fix=Fix(text="Use float16.", patch={"dtype": "float16"}),
            )
    yield from _vllm_cache(subject) if subject.traits.reads_more else _native_cache(subject)


def _native_cache(subject: Subject) -> Iterator[Finding]:
    profile, dtype = subject.profile, subject.effective["dtype"].value
    if profile.kv_cache_dtype not in ("auto", dtype, *CACHE_IN_8_BITS):
        says = f"{dtype} like the model, or fp8 (e4m3); {profile.kv_cache_dtype} is not supported"
        yield _cache(profile.kv_cache_dtype, f"The native engine's KV cache can be {says}.")
    yield from _index_keys(subject)


def _index_keys(subject: Subject) -> Iterator[Finding]:
    wanted, has = subject.profile.index_key_dtype, index_keys.formats(subject.config)
    cache = subject.effective["kv-cache-dtype"].value
    if wanted == index_keys.AUTO or (wanted in has and cache != "float32"):
        return
    if not has:
        says = f"{subject.config.architecture} has no indexer"
    elif wanted in has:
        says = "With a KV cache in float32 an indexer's keys are in float32 too"
    else:
        says = f"{subject.config.architecture} has its indexer's keys in {' or '.join(has)}, not in {wanted}"
    yield Finding(
        id="index-key-dtype-unsupported",
        severity=Severity.ERROR,
        message=f"{says}.",
        field="index-key-dtype",
        value=wanted,
        fix=Fix(text="Leave the format to the model.", patch={"index-key-dtype": None}),
    )


def _vllm_cache(subject: Subject) -> Iterator[Finding]:
    wanted = subject.profile.kv_cache_dtype
    source = subject.vllm_source
    known = source.cache_dtypes if source and subject.context.surroundings else ()
    if wanted != "auto" and known and wanted not in known:
        has = ", ".join(known)
        yield _cache(wanted, f"vLLM {source and source.version} has no {wanted} KV cache. It supports {has}.")


def _cache(wanted: str, message: str) -> Finding:
    return Finding(
        id="kv-cache-dtype-unsupported",
        severity=Severity.ERROR,
        message=message,
        field="kv-cache-dtype",
        value=wanted,
        fix=Fix(text="Let the KV cache follow `dtype`.", patch={"kv-cache-dtype": None}),
    )
