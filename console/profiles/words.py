"""Settings and their values in words, as pages and commands show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from appliance.profile import sizes
from appliance.profile.schema import BY_KEY, Setting, Type

_WORDS = {
    "gpu": "GPU", "jit": "JIT", "kv": "KV", "moe": "MoE", "gdn": "GDN", "mla": "MLA",
    "num": "number of", "len": "length", "seqs": "sequences", "ip": "IP",
}  # fmt: skip

_LABELS = {
    "model.path": "Model",
    "on-request.start": "Start on request",
    "on-request.api-keys": "API keys that may",
    "on-request.min-runtime": "Shortest turn",
    "on-request.drain-within": "Time to finish requests",
    "on-request.max-wait": "Longest wait",
    "on-request.max-waiting": "Most waiting requests",
    "speculative-config.method": "Draft method",
    "speculative-config.num-speculative-tokens": "Tokens per draft",
}

_PLURALS = {"is": "are", "has": "have", "does": "do"}


def label(setting: Setting) -> str:
    """`kv-cache-dtype` -> "KV cache dtype"."""
    if setting.key in _LABELS:
        return _LABELS[setting.key]
    words = [_WORDS.get(word, word) for word in setting.key.rpartition(".")[2].split("-")]
    joined = " ".join(words).replace("max number of", "max")
    return joined[0].upper() + joined[1:]


def plural(reason: str) -> str:
    """A reason as of several: "runs only on the CPU" -> "run only on the CPU"."""
    verb, _, rest = reason.partition(" ")
    return f"{_PLURALS.get(verb, verb.removesuffix('s'))} {rest}"


def shown_default(setting: Setting) -> str:
    """The default as text, for a field's placeholder."""
    if setting.required:
        return ""
    if setting.default is None:
        return setting.none or ""
    return shown(setting, setting.default)


def shown(setting: Setting | None, value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return (setting.none or "none") if setting else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if setting is not None and setting.type is Type.SIZE and isinstance(value, int):
        return sizes.size_text(value)
    if isinstance(value, int) and abs(value) >= 1_000:
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {inner}" for key, inner in value.items()) or "none"
    return str(value)


def field_label(field: str) -> str:
    """The label of the setting that a finding is about; empty where it is about something else, such as a port."""
    setting = BY_KEY.get(field)
    return label(setting) if setting else ""


def field_value(field: str, value: Any) -> str:
    """A setting's value as people read it; anything else as the system writes it."""
    setting = BY_KEY.get(field)
    return shown(setting, value) if setting else str(value)


def limits(setting: Setting) -> str:
    """ "1 to 4,096"; nothing for sizes, whose limits nobody meets."""
    if setting.type is Type.SIZE or (setting.maximum is None and setting.minimum is None and setting.above is None):
        return ""
    if setting.minimum is None:
        low, joint = f"More than {setting.above:g}", ", up to"
    else:
        low, joint = f"{setting.minimum:,.12g}", " to"
    return low if setting.maximum is None else f"{low}{joint} {setting.maximum:,.12g}"
