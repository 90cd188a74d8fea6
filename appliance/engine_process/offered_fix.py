"""A fix as it can be offered for a launch: its patch changes something, concerns the launch's engine, and preflight
lets the changed profile start. Where nothing is wrong with the launch itself, it is started again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from appliance.diagnosis.shell_words import is_operand
from appliance.engines import ENGINES, engine_named
from appliance.profile import document as documents
from appliance.profile.schema import ProfileError
from appliance.protocol import Diagnosis, Finding, Fix, Severity

# What somebody, or something, did to the launch from outside: nothing else has to change.
FROM_OUTSIDE = (
    ("host", "killed-from-outside"),
    ("host", "ended-on-request"),
    ("hang", "stopped"),
)
Check = Callable[[dict[str, Any]], Sequence[Finding]]
"""Blocking: what preflight finds of a document."""


def with_start_again(diagnosis: Diagnosis, profile: str, revision: str) -> Diagnosis:
    """Adds the command that starts this revision again, where nothing else needs to change. A launch from a file has no
    revision."""
    fix = diagnosis.fix
    outside = (diagnosis.family, diagnosis.cause) in FROM_OUTSIDE
    if fix is None or fix.command or not outside or not (is_operand(profile) and is_operand(revision)):
        return diagnosis
    command = shlex.join(("ingot", "profile", "activate", profile, "--revision", revision, "--now"))
    return msgspec.structs.replace(diagnosis, fix=msgspec.structs.replace(fix, command=command))


def with_offered_fix(diagnosis: Diagnosis, document: Mapping[str, Any], check: Check) -> Diagnosis:
    fix = diagnosis.fix
    if fix is None or not fix.patch:
        return diagnosis
    return msgspec.structs.replace(diagnosis, fix=_offered(fix, fix.patch, document, check))


def _offered(fix: Fix, whole: Mapping[str, Any], document: Mapping[str, Any], check: Check) -> Fix:
    """A patch that preflight refuses is left out, with the reason. What preflight refuses without it, too, has to be
    fixed besides."""
    patch = {key: value for key, value in whole.items() if _concerns(key, document)}
    if not patch or _is_idle(patch, document):
        return msgspec.structs.replace(fix, patch=None)
    errors = _errors(check(documents.apply_patch(document, patch)))
    if not errors:
        return msgspec.structs.replace(fix, patch=patch)
    already = {(error.id, error.field) for error in _errors(check(dict(document)))}
    own = [error for error in errors if (error.id, error.field) not in already]
    return msgspec.structs.replace(
        fix, patch=None if own else patch, blocked=tuple(error.message for error in own or errors)
    )


def _concerns(key: str, document: Mapping[str, Any]) -> bool:
    """A section that bears an engine's name is that engine's."""
    section = key.partition(".")[0]
    return section not in ENGINES or engine_named(document.get("engine")).name == section


def _is_idle(patch: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """A row knows what fixes such a failure, not what this profile already says."""
    try:
        return documents.load(documents.apply_patch(document, patch)) == documents.load(document)
    except ProfileError:
        return False


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    """Without what is gone once the failed engine has released all that it held."""
    return [finding for finding in findings if finding.severity is Severity.ERROR and not finding.transient]
