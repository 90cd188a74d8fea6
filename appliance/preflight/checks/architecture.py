"""The engine supports this architecture and the options the model uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.model_config import ACTIVATIONS
from appliance.checkpoint.rope import ROPE_TYPES
from appliance.preflight.offer import with_vllm
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

OTHER_MODEL = Fix(text="Choose another model.")
# vLLM's wrapper around transformers takes what its own registry does not name, if transformers lists it there.
GENERIC, LISTED = "TransformersForCausalLM", "transformers/models/auto/modeling_auto.py"


def run(subject: Subject) -> Iterator[Finding]:
    if subject.traits.reads_more:
        yield from _against_vllm(subject)
        return
    try:
        config = subject.config
    except CheckpointError as error:
        yield with_vllm(subject, error.finding())
        return
    if config.hidden_act not in ACTIVATIONS:  # of these families vLLM runs silu alone
        yield _unsupported("hidden_act", config.hidden_act, f"the activation {config.hidden_act}", ACTIVATIONS)
    rope_type = (config.rope_scaling or {}).get("rope_type", "default")
    if rope_type not in ROPE_TYPES:
        finding = _unsupported("rope_scaling", rope_type, f"RoPE scaling of type {rope_type}", ROPE_TYPES)
        yield with_vllm(subject, finding)


def _unsupported(field: str, value: Any, what: str, supported: Iterable[str]) -> Finding:
    return Finding(
        id="architecture-unsupported",
        severity=Severity.ERROR,
        message=f"The native engine does not support {what}.",
        field=field,
        value=value,
        evidence=(f"supported: {', '.join(supported)}",),
        fix=OTHER_MODEL,
    )


def _against_vllm(subject: Subject) -> Iterator[Finding]:
    source, architecture = subject.vllm_source, subject.architecture
    known = source.architectures if source and subject.context.surroundings else frozenset[str]()
    if source is None or not known or architecture in known:
        return
    own_code = bool(subject.raw_config.get("auto_map"))
    generic = GENERIC in known and f'"{architecture}"' in source.packages.text(LISTED)
    yield Finding(
        id="architecture-unknown-to-vllm",
        severity=Severity.WARNING if generic else Severity.ERROR,
        message=f"vLLM {source.version} has no implementation of {architecture}"
        + (". It falls back to the one in transformers, which is slower." if generic else "."),
        field="architectures",
        value=architecture,
        evidence=(
            str(subject.folder / "config.json"),
            *(("config.json asks for custom code (auto_map); Ingot never runs it",) if own_code else ()),
        ),
        fix=Fix(text="Use the native engine, which supports it.", patch={"engine": "native"})
        if subject.readable
        else Fix(text="Install a vLLM that supports it, or choose another model."),
    )
