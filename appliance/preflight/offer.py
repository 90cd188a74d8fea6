"""What else would run a model that the native engine does not: vLLM, where it is installed and has all that the model
asks for."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from appliance.checkpoint.errors import CheckpointError
from appliance.engines import VLLM
from appliance.preflight.subject import Subject
from appliance.profile.shown import shown
from appliance.protocol import Finding, Fix
from appliance.vllm.source import VllmSource, method_name
from kernels.catalogue import engines_of
from kernels.selection import AUTO


def with_vllm(subject: Subject, finding: Finding) -> Finding:
    """The finding, with the other engine as its fix if that is one, or with the reason why it is none."""
    if subject.traits.reads_more or subject.context.surroundings is None:
        return finding
    text = finding.fix.text if finding.fix else "Choose another model."
    source, architecture = subject.vllm_source, _architecture(subject)
    if source is None:
        fix = Fix(text=f"{text} vLLM is not installed here.")
    elif architecture is None or not source.architectures:
        fix = Fix(text=text)
    elif lacking := _lacking(subject, source, architecture):
        installed = f"The installed vLLM ({source.version})"
        fix = Fix(text=f"{text} {installed} does not support {lacking} either.")
    else:
        fix = Fix(
            text=f"Use the installed vLLM ({source.version}), which supports {architecture}.",
            patch={"engine": VLLM.name} | _foreign_backends(subject),
        )
    return structs.replace(finding, fix=fix)


def _lacking(subject: Subject, source: VllmSource, architecture: str) -> str:
    """What a model asks for that this vLLM does not have; empty where it has all, as far as it says."""
    if architecture not in source.architectures:
        return architecture
    given = subject.raw_config.get("quantization_config")
    method = method_name(given)
    if given and (method is None or (source.methods and method not in source.methods)):
        return f"the quantisation {shown(method or given)}"
    rope = (subject.config.rope_scaling or {}).get("rope_type") if subject.readable else None
    if rope and source.rope_types and rope not in source.rope_types:
        return f"RoPE scaling of type {rope}"
    return ""


def _architecture(subject: Subject) -> str | None:
    try:
        return subject.architecture
    except CheckpointError:
        return None


def _foreign_backends(subject: Subject) -> dict[str, Any]:
    """Choices that vLLM does not have are left to it."""
    return {
        f"backends.{setting}": None
        for setting, name in subject.profile.backends.items()
        if name != AUTO and VLLM.name not in engines_of(setting, name)
    }
