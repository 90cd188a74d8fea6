"""The native engine runs models of this architecture, with the options that this one uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from appliance.checkpoint.config import ROPE_TYPES
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

ACTIVATIONS = ("silu", "swish")
OTHER_ENGINE = Fix(text="Choose another model. One like this runs with `engine: vllm`, where Ingot comes with vLLM.")


def run(subject: Subject) -> Iterator[Finding]:
    config = subject.config  # raises where the architecture is not supported
    if config.hidden_act not in ACTIVATIONS:
        yield _unsupported("hidden_act", config.hidden_act, f"the activation {config.hidden_act}", ACTIVATIONS)
    rope_type = (config.rope_scaling or {}).get("rope_type", "default")
    if rope_type not in ROPE_TYPES:
        yield _unsupported("rope_scaling", rope_type, f"RoPE scaling of type {rope_type}", ROPE_TYPES)
    if config.quantization is not None:
        method = str(config.quantization.get("quant_method", "an unnamed method"))[:40]
        yield Finding(
            id="quantization-unsupported",
            severity=Severity.ERROR,
            message=f"The checkpoint is quantised ({method}), and the native engine runs unquantised models so far.",
            field="quantization_config",
            value=method,
            evidence=(str(subject.folder / "config.json"),),
            fix=Fix(
                text="Use the same model in bfloat16 or float16. This one runs with `engine: vllm`, where Ingot has it."
            ),
        )


def _unsupported(field: str, value: Any, what: str, supported: tuple[str, ...]) -> Finding:
    return Finding(
        id="architecture-unsupported",
        severity=Severity.ERROR,
        message=f"The native engine does not have {what}.",
        field=field,
        value=value,
        evidence=(f"supported: {', '.join(supported)}",),
        fix=OTHER_ENGINE,
    )
