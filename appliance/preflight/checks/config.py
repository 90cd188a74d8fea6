"""config.json is readable and has every field a model needs."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint.config import SUPPORTED_ARCHITECTURES
from appliance.checkpoint.errors import CheckpointError
from appliance.preflight.offer import with_vllm
from appliance.preflight.subject import Subject
from appliance.protocol import Finding

FOR_VLLM_TO_JUDGE = "quantization-unsupported"


def run(subject: Subject) -> Iterator[Finding]:
    """An architecture that is not supported is the next check's to report; vLLM knows more ways of quantisation."""
    if subject.architecture not in SUPPORTED_ARCHITECTURES:
        return
    try:
        _ = subject.config
    except CheckpointError as error:
        if error.id != FOR_VLLM_TO_JUDGE:
            raise
        if not subject.traits.reads_more:
            yield with_vllm(subject, error.finding())
