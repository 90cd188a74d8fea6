"""A profile as a document: read, loaded, written, identified, patched and compared.

A document is plain data as YAML or JSON hold it. `check` (from `validation`) says what is wrong with it; `load` makes
the frozen `Profile` of one without problems.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from appliance.profile import sizes, spellings, text
from appliance.profile.on_request import OnRequest
from appliance.profile.schema import (
    BY_KEY,
    SCHEMA_VERSION,
    SETTINGS,
    ModelReference,
    Profile,
    ProfileError,
    RaySettings,
    Setting,
    Type,
    VllmOptions,
)
from appliance.profile.speculative import SpeculativeConfig
from appliance.profile.validation import MISSING, check, get

__all__ = [
    "Change", "apply_patch", "check", "content_hash", "diff", "export", "get", "load", "parse", "to_document",
    "value_of", "write",
]  # fmt: skip


class Change(msgspec.Struct, frozen=True):
    """One setting that differs between two documents; a value that a document leaves out is its default."""

    key: str
    before: Any
    after: Any


# --------------------------------------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------------------------------------


def parse(source: str | bytes) -> dict[str, Any]:
    """The document that a YAML or JSON text holds, in the canonical spelling. Raises ProfileError for text that
    cannot be read; what the document says is judged by `check`."""
    return spellings.canonical(text.read(source))


def load(document: Mapping[str, Any]) -> Profile:
    """The profile with every default filled in. Raises ProfileError with all problems."""
    if problems := check(document):
        raise ProfileError(problems)
    values = {setting.key: _value(setting, document) for setting in SETTINGS}
    sampling = _section(values, "sampling-defaults")
    return Profile(
        name=values["name"],
        model=ModelReference(values["model.path"], values["model.digest"]),
        served_model_name=values["served-model-name"] or values["name"],
        engine=values["engine"],
        device=values["device"],
        dtype=values["dtype"],
        max_model_len=values["max-model-len"],
        max_num_seqs=values["max-num-seqs"],
        max_num_batched_tokens=values["max-num-batched-tokens"],
        block_size=values["block-size"],
        gpu_memory_utilization=values["gpu-memory-utilization"],
        kv_cache_dtype=values["kv-cache-dtype"],
        index_key_dtype=values["index-key-dtype"],
        kv_cache_memory_bytes=values["kv-cache-memory-bytes"],
        tensor_parallel_size=values["tensor-parallel-size"],
        enforce_eager=values["enforce-eager"],
        jit=values["jit"],
        prefix_caching=values["prefix-caching"],
        prefix_cache_salt=values["prefix-cache-salt"],
        chat_encoding=values["chat-encoding"],
        tool_call_parser=values["tool-call-parser"],
        reasoning_parser=values["reasoning-parser"],
        strict_requests=values["strict-requests"],
        response_store=values["response-store"],
        backends=_section(values, "backends"),
        site_backends=dict(values["site-backends"]),
        sampling_defaults={key.replace("-", "_"): value for key, value in sampling.items() if value is not None},
        on_failure=values["on-failure"],
        vllm=VllmOptions(dict(values["vllm.extra-args"]), dict(values["vllm.environment"])),
        ray=RaySettings(**_attributes(values, "ray")),
        on_request=OnRequest(**_attributes(values, "on-request")),
        speculative_config=SpeculativeConfig(**_attributes(values, "speculative-config")),
    )


def _section(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {key.split(".", 1)[1]: value for key, value in values.items() if key.startswith(f"{section}.")}


def _attributes(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in _section(values, section).items()}


def _value(setting: Setting, document: Mapping[str, Any]) -> Any:
    """The value in its one canonical form, default applied; the document has been checked."""
    given = get(document, setting.key)
    if given is MISSING:
        return setting.default
    if setting.type is Type.SIZE and isinstance(given, str):
        return sizes.parse_size(given)
    if setting.type is Type.NUMBER and given is not None:
        return float(given)
    return given


# --------------------------------------------------------------------------------------------------------------------
# Writing and comparing
# --------------------------------------------------------------------------------------------------------------------


def to_document(profile: Profile) -> dict[str, Any]:
    """The canonical document: the format's version, what is required, and what differs from the defaults, sorted."""
    document: dict[str, Any] = {}
    for setting in sorted(SETTINGS, key=lambda setting: setting.key):
        value = value_of(profile, setting.key)
        if setting.key == "schema" or setting.required or value != setting.default:
            section, _, name = setting.key.rpartition(".")
            target = document.setdefault(section, {}) if section else document
            target[name] = dict(sorted(value.items())) if isinstance(value, Mapping) else value
    return dict(sorted(document.items()))


def value_of(profile: Profile, key: str) -> Any:
    """What the profile holds for a setting's dotted key; None where nothing is set."""
    section, _, name = key.rpartition(".")
    attribute = name.replace("-", "_")
    match section:
        case "backends":
            return profile.backends[name]
        case "sampling-defaults":
            return profile.sampling_defaults.get(attribute)
        case "model":
            return getattr(profile.model, attribute)
        case "vllm":
            return getattr(profile.vllm, attribute)
        case "ray":
            return getattr(profile.ray, attribute)
        case "on-request":
            return getattr(profile.on_request, attribute)
        case "speculative-config":
            return getattr(profile.speculative_config, attribute)
    if key == "schema":
        return SCHEMA_VERSION
    if key == "served-model-name" and profile.served_model_name == profile.name:
        return None
    return getattr(profile, attribute)


class _Dumper(yaml.SafeDumper):
    """Writes what `text.read` reads as it was: no anchors, quotes around text that would be a number there, and
    escapes for what YAML folds (line separators of every kind)."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        style = '"' if not data.isprintable() else None if text.reads_as_text(data) else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def write(document: Mapping[str, Any]) -> str:
    """A document as YAML, in the order that it has."""
    dumped: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return dumped


def export(profile: Profile) -> str:
    """YAML that `parse` and `load` make the same profile of: only what differs from the defaults, sorted."""
    document = to_document(profile)
    if "kv-cache-memory-bytes" in document:
        document["kv-cache-memory-bytes"] = sizes.format_size(document["kv-cache-memory-bytes"])
    return write(document)


def content_hash(profile: Profile) -> str:
    """`sha256:...` over the canonical document: equal for any two documents that say the same."""
    canonical = json.dumps(to_document(profile), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def apply_patch(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with each dotted key of the patch set, or removed where its value is None. Not checked: see `check`."""
    result = copy.deepcopy(dict(document))
    for dotted, value in patch.items():
        *sections, name = dotted.split(".")
        parents = [result]
        for section in sections:
            inner = parents[-1].get(section)
            if not isinstance(inner, dict):
                inner = parents[-1][section] = {}
            parents.append(inner)
        if value is not None:
            parents[-1][name] = copy.deepcopy(value)
            continue
        parents[-1].pop(name, None)
        for section, parent, inner in zip(
            reversed(sections), reversed(parents[:-1]), reversed(parents[1:]), strict=True
        ):
            if not inner:
                del parent[section]
    return result


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """What changes between two documents, by dotted key; a setting that one leaves out counts as its default."""
    left, right = _flat(before), _flat(after)
    changes = []
    for key in sorted(left.keys() | right.keys()):
        default = BY_KEY[key].default if key in BY_KEY and not BY_KEY[key].required else None
        old, new = left.get(key, default), right.get(key, default)
        if old != new or isinstance(old, bool) != isinstance(new, bool):
            changes.append(Change(key, old, new))
    return changes


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
