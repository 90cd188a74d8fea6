"""Weights, workspace and cache fit into the device's memory."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint.memory import MemoryPlan
from appliance.preflight.subject import Subject
from appliance.profile.schema import Profile
from appliance.profile.sizes import size_text
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    plan, profile, gpu = subject.effective.memory, subject.profile, subject.effective.device.gpu
    where = f"of memory on {gpu.name}" if gpu else "of this machine's memory"
    evidence = (
        f"weights {size_text(plan.weight_bytes)}",
        f"workspace {size_text(plan.workspace_bytes)}",
        f"cache {size_text(plan.cache_bytes)} ({plan.num_blocks} blocks of {plan.block_size} tokens)",
        f"available {size_text(plan.available_bytes)}",
    )
    if not plan.fits:
        yield Finding(
            id="memory-too-small",
            severity=Severity.ERROR,
            message=_why(plan, profile, where),
            field="kv-cache-memory-bytes" if _cache_is_given_too_small(plan, profile) else "max-model-len",
            value=plan.max_model_len,
            evidence=evidence,
            fix=_fix(plan, profile),
        )
    elif plan.shortened:
        yield Finding(
            id="context-shortened",
            severity=Severity.WARNING,
            message=f"The model was made for {subject.config.context_length} tokens; memory allows "
            f"{plan.max_model_len} {where}.",
            field="max-model-len",
            value=plan.max_model_len,
            evidence=evidence,
            fix=Fix(text="Keep this length in the profile.", patch={"max-model-len": plan.max_model_len}),
        )


def _cache_is_given_too_small(plan: MemoryPlan, profile: Profile) -> bool:
    given = profile.kv_cache_memory_bytes
    return given is not None and given < plan.cache_bytes


def _why(plan: MemoryPlan, profile: Profile, where: str) -> str:
    model, free = size_text(plan.weight_bytes + plan.workspace_bytes), size_text(plan.available_bytes)
    given = profile.kv_cache_memory_bytes
    if plan.weight_bytes + plan.workspace_bytes > plan.available_bytes:
        return f"The model needs {model} for weights and workspace, and {free} {where} are free."
    if given is not None and given < plan.cache_bytes:
        return f"A cache of {size_text(given)} does not hold one request of {plan.max_model_len} tokens."
    if given is not None:
        return f"A cache of {size_text(given)} does not fit: the model needs {model}, and {free} {where} are free."
    return (
        f"One request of {plan.max_model_len} tokens needs a cache of {size_text(plan.cache_bytes)}, which does not "
        f"fit: the model needs {model}, and {free} {where} are free."
    )


def _fix(plan: MemoryPlan, profile: Profile) -> Fix:
    if plan.longest_context > 0:
        text = f"Use max-model-len {plan.longest_context}, the longest that fits."
        return Fix(text=text, patch={"max-model-len": plan.longest_context})
    if profile.kv_cache_memory_bytes is not None:
        return Fix(text="Let Ingot size the cache.", patch={"kv-cache-memory-bytes": None})
    if profile.max_num_seqs > 16 or profile.max_num_batched_tokens > 512:
        text = "Allow fewer requests at a time; end other programs that hold memory; or choose a smaller model."
        patch = {"max-num-seqs": min(profile.max_num_seqs, 16), "max-num-batched-tokens": 512}
        return Fix(text=text, patch=patch)
    return Fix(text="End other programs that hold memory, or choose a smaller model or a larger device.")
