"""The model and the engine can do the drafts that the profile asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from appliance.checkpoint.drafting import hold_head, with_head
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

METHOD: Final = "speculative-config.method"
NUMBER: Final = "speculative-config.num-speculative-tokens"

_NO_DRAFTS: Final = Fix(text="Do without drafts.", patch={METHOD: None})
_BY_NGRAM: Final = Fix(text="Draft by n-grams, which need no head.", patch={METHOD: "ngram"})


def run(subject: Subject) -> Iterator[Finding]:
    drafts, tokens = subject.profile.speculative_config, subject.profile.max_num_batched_tokens
    if drafts.method == "none":
        return
    if tokens <= drafts.most:
        fewer = Fix(text="Draft fewer tokens.", patch={NUMBER: tokens - 1}) if tokens > 1 else _NO_DRAFTS
        yield _error(
            "drafts-exceed-step", NUMBER, drafts.most,
            f"A token and its {drafts.most} drafts do not fit into a step of max-num-batched-tokens {tokens}.", fewer,
        )  # fmt: skip
    if drafts.method == "mtp" and not hold_head(subject.index.tensors):
        yield _error(
            "mtp-head-missing", METHOD, "mtp",
            f"{subject.profile.model.path} has no multi-token prediction head: "
            "no tensor is named mtp.* or *.eh_proj.*.",
            _BY_NGRAM,
        )  # fmt: skip
    elif not subject.traits.own_server:
        yield from _native(subject)


def _native(subject: Subject) -> Iterator[Finding]:
    method = subject.profile.speculative_config.method
    if method == "mtp" and not with_head(subject.config).drafts:
        yield _error(
            "mtp-native", METHOD, method,
            f"The native engine does not use the multi-token prediction head of {subject.config.architecture}.",
            _BY_NGRAM,
        )  # fmt: skip
    elif method == "mtp" and subject.profile.speculative_config.most > 1:
        yield _error(
            "drafts-exceed-head", NUMBER, subject.profile.speculative_config.most,
            "The native engine drafts one token with a multi-token prediction head.",
            Fix(text="Draft one token.", patch={NUMBER: None}),
        )  # fmt: skip


def _error(id: str, field: str, value: Any, message: str, fix: Fix) -> Finding:
    return Finding(id=id, severity=Severity.ERROR, message=message, field=field, value=value, fix=fix)
