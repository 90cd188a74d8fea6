"""What else would run a model that the native engine does not: vLLM, where it is installed and knows the model."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from appliance.checkpoint.errors import CheckpointError
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix
from kernels.catalogue import engines_of
from kernels.selection import AUTO


def with_vllm(subject: Subject, finding: Finding) -> Finding:
    """The finding, with the other engine as its fix if that is one, or with the reason why it is none."""
    if subject.engine != "native" or subject.context.surroundings is None:
        return finding
    text = finding.fix.text if finding.fix else "Choose another model."
    source, architecture = subject.vllm_source, _architecture(subject)
    if source is None:
        fix = Fix(text=f"{text} There is no vLLM in this installation.")
    elif architecture is None or not source.architectures:
        fix = Fix(text=text)
    elif architecture not in source.architectures:
        installed = f"The vLLM that is installed here ({source.version})"
        fix = Fix(text=f"{text} {installed} does not know {architecture} either.")
    else:
        fix = Fix(
            text=f"Use vLLM, which is installed here ({source.version}) and runs {architecture}.",
            patch={"engine": "vllm"} | _foreign_backends(subject),
        )
    return structs.replace(finding, fix=fix)


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
        if name != AUTO and "vllm" not in engines_of(setting, name)
    }
