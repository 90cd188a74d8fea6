"""The native engine runs models of this architecture, with the options that this one uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from appliance.checkpoint.model_config import ACTIVATIONS
from appliance.checkpoint.rope import ROPE_TYPES
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

OTHER_ENGINE = Fix(text="Choose another model. One like this runs with `engine: vllm`, where Ingot comes with vLLM.")


def run(subject: Subject) -> Iterator[Finding]:
    config = subject.config  # raises where the architecture is not supported
    if config.hidden_act not in ACTIVATIONS:
        yield _unsupported("hidden_act", config.hidden_act, f"the activation {config.hidden_act}", ACTIVATIONS)
    rope_type = (config.rope_scaling or {}).get("rope_type", "default")
    if rope_type not in ROPE_TYPES:
        yield _unsupported("rope_scaling", rope_type, f"RoPE scaling of type {rope_type}", ROPE_TYPES)


def _unsupported(field: str, value: Any, what: str, supported: Iterable[str]) -> Finding:
    return Finding(
        id="architecture-unsupported",
        severity=Severity.ERROR,
        message=f"The native engine does not have {what}.",
        field=field,
        value=value,
        evidence=(f"supported: {', '.join(supported)}",),
        fix=OTHER_ENGINE,
    )
