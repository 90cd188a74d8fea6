"""max-model-len is within the model's own context, with RoPE scaling counted as the engine counts it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from appliance.checkpoint.tokenizer import read_settings
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
# The keys by which models name their longest context; the least of them counts.
LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len", "n_ctx",
)  # fmt: skip
# Kinds of scaling with which the length stands already multiplied in the config.
COUNTED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default", "mrope")


def run(subject: Subject) -> Iterator[Finding]:
    wanted = subject.profile.max_model_len
    if wanted is None:
        return
    if not subject.traits.reads_more:
        longest = subject.config.context_length
        if wanted > longest:
            yield _too_long(subject, wanted, longest, "beyond that it generates noise", Severity.ERROR)
        return
    surely, perhaps = _as_vllm_counts(subject)
    if surely is None or wanted <= surely:
        return
    allowed = subject.engine_environ.get(LONGER) == "1"
    within = perhaps is not None and wanted <= perhaps
    why = (
        f"{LONGER} lets it start, but beyond that it generates noise"
        if allowed
        else "vLLM versions differ in whether RoPE scaling raises that"
        if within
        else "vLLM refuses to start with more"
    )
    severity = Severity.WARNING if allowed or within else Severity.ERROR
    yield _too_long(subject, wanted, surely, why, severity)


def _as_vllm_counts(subject: Subject) -> tuple[int | None, int | None]:
    """(the least, the most) that it may take for the longest context; None where the model does not say."""
    whole = subject.raw_config
    text = whole.get("text_config")
    shape: dict[str, Any] = whole | text if isinstance(text, dict) else whole
    lengths = [value for name in LENGTHS if (value := _positive(shape.get(name)))]
    if not lengths:
        return None, None
    longest = min(lengths)
    if told := _positive(read_settings(subject.folder).get("model_max_length")):
        longest = min(longest, told)
    scaling = shape.get("rope_scaling") or shape.get("rope_parameters")
    if not isinstance(scaling, dict) or str(shape.get("model_type", "")).startswith("gemma3"):
        return longest, longest
    factor = scaling.get("factor")
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not 1 <= factor <= 1e6:
        return longest, longest
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in COUNTED:
        return int(longest * factor), int(longest * factor)
    original = _positive(scaling.get("original_max_position_embeddings")) or longest
    return longest, max(longest, int(original * factor)) if kind in ("yarn", "deepseek_yarn") else longest


def _positive(value: Any) -> int | None:
    """Tokenizers say 1e30 for no limit."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9 else None


def _too_long(subject: Subject, wanted: int, longest: int, why: str, severity: Severity) -> Finding:
    config = subject.raw_config
    text = config.get("text_config")
    shape = config | text if isinstance(text, dict) else config
    named = [f"config.json: {name} {shape[name]}" for name in LENGTHS if _positive(shape.get(name))]
    given = shape.get("rope_scaling") or shape.get("rope_parameters")
    scaling = given if isinstance(given, dict) and "factor" in given else None
    return Finding(
        id="context-too-long",
        severity=severity,
        message=f"The profile asks for a context of {wanted:,} tokens. The model supports {longest:,}; {why}.",
        field="max-model-len",
        value=wanted,
        evidence=(*named[:3], *((f"config.json: RoPE scaling {ascii(scaling)[:120]}",) if scaling else ())),
        fix=Fix(text=f"Use {longest:,}.", patch={"max-model-len": longest}),
    )
