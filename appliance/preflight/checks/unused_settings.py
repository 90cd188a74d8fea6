"""Settings without effect are reported, never ignored in silence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from appliance.preflight.subject import Subject
from appliance.profile.document import value_of
from appliance.profile.parser_names import AUTO
from appliance.profile.speculative import SpeculativeConfig
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    profile, engine = subject.profile, subject.traits
    if profile.prefix_cache_salt != "none" and not engine.salts_prefix_cache:
        yield _unused("prefix-cache-salt", profile.prefix_cache_salt, "only `engine: native` salts its cache")
    if engine.own_server:
        if profile.index_key_dtype != AUTO:
            says = "vLLM takes it from vllm.extra-args.attention-config"
            yield _unused("index-key-dtype", profile.index_key_dtype, says)
        if profile.chat_encoding != AUTO:
            yield _unused("chat-encoding", profile.chat_encoding, "vLLM takes it from vllm.extra-args.tokenizer-mode")
        for key in ("tool-call-parser", "reasoning-parser"):
            if (parser := value_of(profile, key)) != AUTO:
                yield _unused(key, parser, f"vLLM takes it from vllm.extra-args.{key}")
        if profile.strict_requests:
            yield _unused("strict-requests", True, "only `engine: native` refuses unknown fields")
        if profile.response_store:
            yield _unused("response-store", profile.response_store, "only `engine: native` keeps answers")
    drafts = profile.speculative_config
    if drafts.method == "none" and drafts != SpeculativeConfig():
        key = "speculative-config.num-speculative-tokens"
        yield _unused(key, drafts.num_speculative_tokens, "speculative-config.method is none")
    if profile.vllm.extra_args and not profile.engine_options.extra_args:
        yield _unused("vllm.extra-args", sorted(profile.vllm.extra_args), "it applies to `engine: vllm` only")
    if profile.site_backends and engine.measures_memory:
        yield _unused("site-backends", sorted(profile.site_backends), "it applies to `engine: native` only")
    if profile.ray.address is not None and not engine.several_hosts:
        yield _unused("ray", profile.ray.address, "only `engine: vllm` runs on several hosts")
    if profile.vllm.environment and not profile.engine_options.environment:
        yield _unused("vllm.environment", sorted(profile.vllm.environment), "it applies to `engine: vllm` only")


def _unused(field: str, value: Any, why: str) -> Finding:
    return Finding(
        id="setting-unused",
        severity=Severity.WARNING,
        message=f"{field} has no effect: {why}.",
        field=field,
        value=value,
        fix=Fix(text="Remove it.", patch={field: None}),
    )
