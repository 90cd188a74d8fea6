"""Weights, workspace and KV cache fit into the device's memory. A fix is offered only if it makes the plan fit."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from typing import Any

from appliance.checkpoint.memory import SHORTEST_USEFUL_CONTEXT, MemoryPlan
from appliance.preflight.subject import Subject
from appliance.profile import document
from appliance.profile.schema import BY_KEY, Profile
from appliance.profile.sizes import size_text
from appliance.protocol import Finding, Fix, Severity

# Fewer requests at a time, in the order in which they are tried.
SMALLER_BATCHES = ((64, 1024), (16, 512), (4, 128))
# The largest share of a GPU that is worth asking for: drivers and displays take from the rest.
MOST_OF_A_GPU = 0.95

Patch = dict[str, Any]


def run(subject: Subject) -> Iterator[Finding]:
    plan, profile, gpu = subject.memory, subject.profile, subject.device.gpu
    if plan is None:
        return
    where = f"on {gpu.name}" if gpu else _where(subject)
    evidence = tuple(_evidence(plan))
    few_copies = plan.state_bytes and profile.prefix_caching and plan.num_snapshots < profile.max_num_seqs
    if not plan.fits and _states_are_the_fault(plan) and (most := _fewer(subject, copies=False)):
        yield _too_many_states(subject, plan, where, most)
    elif not plan.fits:
        given = _cache_given_is_the_fault(plan, profile)
        yield Finding(
            id="memory-too-small",
            severity=Severity.ERROR,
            message=_why(plan, profile, where),
            field="kv-cache-memory-bytes" if given else "max-model-len",
            value=profile.kv_cache_memory_bytes if given else plan.max_model_len,
            evidence=evidence,
            fix=_fix(subject, plan),
            transient=_fits_when_free(subject, plan),
        )
    elif few_copies and (fewer := _fewer(subject, copies=True)):
        yield Finding(
            id="few-state-copies",
            severity=Severity.WARNING,
            message=f"The states of {profile.max_num_seqs:,} sequences leave room for {plan.num_snapshots:,} copies: "
            "prompts that begin alike, and the next turns of conversations, are mostly computed anew.",
            field="max-num-seqs",
            value=profile.max_num_seqs,
            evidence=evidence,
            fix=Fix(
                text=f"Run at most {fewer:,} sequences at a time, which leaves a copy for each.",
                patch={"max-num-seqs": fewer},
            ),
        )
    elif plan.shortened:
        yield Finding(
            id="context-shortened",
            severity=Severity.WARNING,
            message=f"The model supports a longer context, but memory {where} limits it to {plan.max_model_len:,} "
            "tokens.",
            field="max-model-len",
            value=plan.max_model_len,
            evidence=evidence,
            fix=Fix(text="Set this length in the profile.", patch={"max-model-len": plan.max_model_len}),
        )


def _states_are_the_fault(plan: MemoryPlan) -> bool:
    """All else would fit."""
    return plan.needed_bytes - plan.state_bytes <= plan.available_bytes < plan.needed_bytes


def _too_many_states(subject: Subject, plan: MemoryPlan, where: str, most: int) -> Finding:
    asked = subject.profile.max_num_seqs
    each = size_text(plan.state_bytes // (asked + 1))  # one is for padding
    fewer = _fewer(subject, copies=True) if subject.profile.prefix_caching else 0
    with_copies = f", and {fewer:,} with a copy of each for prefix caching" if fewer else ""
    return Finding(
        id="too-many-states",
        severity=Severity.ERROR,
        message=f"Each sequence of this model carries a state of {each}. {asked:,} of them do not fit {where} beside "
        f"one full context of {plan.max_model_len:,} tokens; {most:,} do{with_copies}.",
        field="max-num-seqs",
        value=asked,
        evidence=tuple(_evidence(plan)),
        fix=Fix(text=f"Run at most {fewer or most:,} sequences at a time.", patch={"max-num-seqs": fewer or most}),
        transient=_fits_when_free(subject, plan),
    )


def _fewer(subject: Subject, *, copies: bool) -> int:
    """The most sequences whose states fit beside a whole context, and with `copies` one for each besides; 0 if not even
    one's does."""

    def misfits(count: int) -> bool:
        after = _planned(subject, {"max-num-seqs": count})
        return after.shortened or not after.fits or (copies and after.num_snapshots < count)

    return bisect.bisect_left(range(1, subject.profile.max_num_seqs), True, key=misfits)


def _fits_when_free(subject: Subject, plan: MemoryPlan) -> bool:
    """Whether it is only other programs that take the room."""
    given = subject.profile.kv_cache_memory_bytes
    share = subject.profile.gpu_memory_utilization if subject.device.gpu else 1.0
    return (given is None or given >= plan.cache_bytes) and plan.needed_bytes <= plan.total_bytes * share


def _where(subject: Subject) -> str:
    limit = subject.inventory.host.memory_limit_bytes
    if limit is None:
        return "on this machine"
    return f"within the {size_text(limit)} limit of the container or service"


def _evidence(plan: MemoryPlan) -> Iterator[str]:
    for part in plan.segments:
        detail = ""
        if part.key == "cache":
            copies = f", and {plan.num_snapshots:,} copies of states" if plan.state_bytes else ""
            windows = "".join(f", {count:,} for windows of {size:,}" for size, count in plan.window_blocks.items())
            detail = f" ({plan.num_blocks:,} blocks of {plan.block_size} tokens{windows}{copies})"
        yield f"{part.label} {size_text(part.bytes)}{detail}"
    yield f"available to the engine {size_text(plan.available_bytes)} of {size_text(plan.total_bytes)}"
    for holder in plan.holders[:8]:
        yield f"in use by {holder.name}" + (f": {size_text(holder.bytes)}" if holder.bytes is not None else "")


def _cache_given_is_the_fault(plan: MemoryPlan, profile: Profile) -> bool:
    """Too large for the memory, or too small for one request; a model that does not fit at all comes first."""
    return profile.kv_cache_memory_bytes is not None and plan.needed_bytes - plan.cache_bytes <= plan.available_bytes


def _why(plan: MemoryPlan, profile: Profile, where: str) -> str:
    model = plan.needed_bytes - plan.cache_bytes
    needs, free = size_text(model), size_text(plan.available_bytes)
    given = profile.kv_cache_memory_bytes
    if model > plan.available_bytes:
        parts = "weights, states and workspace" if plan.state_bytes else "weights and workspace"
        return f"The model needs {needs} for {parts}; {free} is available {where}."
    if given is not None and given < plan.cache_bytes:
        return f"A KV cache of {size_text(given)} is too small for one request of {plan.max_model_len:,} tokens."
    if given is not None:
        return (
            f"A KV cache of {size_text(given)} does not fit: the model needs {needs}, and {free} is available {where}."
        )
    return (
        f"One request of {plan.max_model_len:,} tokens needs a KV cache of {size_text(plan.cache_bytes)}, which "
        "does not "
        f"fit: the model needs {needs}, and {free} is available {where}."
    )


def _fix(subject: Subject, plan: MemoryPlan) -> Fix:
    """The first change that fits with a context of use; else the first that fits at all."""
    found: list[tuple[int, Fix]] = []
    wanted = min(plan.max_model_len, SHORTEST_USEFUL_CONTEXT)
    for text, patch in _patches(subject, plan):
        after = _planned(subject, patch)
        if not after.fits and after.longest_context:
            patch |= {"max-model-len": after.longest_context}
            text += f" with a context of {after.longest_context:,} tokens, the longest that then fits"
            after = _planned(subject, patch)
        if after.fits:
            fix = Fix(text=f"{text}.", patch=patch)
            if after.max_model_len >= wanted:
                return fix
            found.append((after.max_model_len, fix))
    if found:
        return max(found, key=lambda each: each[0])[1]
    who = ", ".join(holder.name for holder in plan.holders[:3])
    end = f"End {who}" if who else "End other programs that use memory"
    if subject.device.gpu is None and subject.inventory.host.memory_limit_bytes is not None:
        end = "Raise the container's memory limit (INGOT_ENGINE_MEMORY in .env, then `docker compose up -d`)"
    return Fix(text=f"{end}, or choose a smaller or quantised model or a larger device.")


def _patches(subject: Subject, plan: MemoryPlan) -> Iterator[tuple[str, Patch]]:
    """Changes that may help, least first; each in words without a full stop."""
    profile, gpu = subject.profile, subject.device.gpu
    if plan.longest_context:
        text = f"Use a context of {plan.longest_context:,} tokens, the longest that fits"
        yield text, {"max-model-len": plan.longest_context}
    if profile.kv_cache_memory_bytes is not None:
        yield "Let Ingot size the KV cache", {"kv-cache-memory-bytes": None}
    larger: Patch = {"kv-cache-memory-bytes": None} if profile.kv_cache_memory_bytes is not None else {}
    if gpu is not None and gpu.memory_bytes:
        share = min(math.floor(gpu.memory_free_bytes / gpu.memory_bytes * 100) / 100, MOST_OF_A_GPU)
        if share > profile.gpu_memory_utilization:
            yield f"Use {share:.0%} of the GPU", larger | {"gpu-memory-utilization": share}
    for sequences, tokens in SMALLER_BATCHES:
        if profile.max_num_seqs > sequences or profile.max_num_batched_tokens > tokens:
            smaller = {
                "max-num-seqs": min(profile.max_num_seqs, sequences),
                "max-num-batched-tokens": min(profile.max_num_batched_tokens, tokens),
            }
            yield "Allow fewer concurrent requests", larger | smaller
    for other in subject.inventory.gpus:
        if gpu is not None and other.uuid != gpu.uuid and other.memory_free_bytes > gpu.memory_free_bytes:
            yield f"Use {other.name}, which has {size_text(other.memory_free_bytes)} free", {"device": other.uuid}


def _planned(subject: Subject, patch: Patch) -> MemoryPlan:
    assert set(patch) <= set(BY_KEY)
    plan = subject.memory_of(document.load(document.apply_patch(dict(subject.context.document), patch)))
    assert plan is not None, "what could be planned before still can be"
    return plan
