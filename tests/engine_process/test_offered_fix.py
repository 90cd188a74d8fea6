"""A fix is offered as a change of the profile only where the changed profile would start."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from appliance.engine_process.offered_fix import FROM_OUTSIDE, with_offered_fix, with_start_again
from appliance.protocol import Diagnosis, Finding, Fix, Severity
from console.profiles.profile_command import activate

DOCUMENT: dict[str, Any] = {"schema": 1, "name": "m", "model": {"path": "bundled"}, "max-model-len": 4096}
VLLM = DOCUMENT | {"engine": "vllm"}
SHORTER = {"max-model-len": 2048}


def error(id: str, *, transient: bool = False, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(id=id, severity=severity, message=f"{id}.", transient=transient)


def finding(
    always: Sequence[Finding] = (), of_patch: Sequence[Finding] = ()
) -> Callable[[dict[str, Any]], list[Finding]]:
    """A preflight that finds these of every profile, and those of one with a shorter context."""
    return lambda document: [*always, *(of_patch if document.get("max-model-len") == 2048 else ())]


def offered(patch: dict[str, Any], document: dict[str, Any] = DOCUMENT, **found: Sequence[Finding]) -> Fix:
    fix = with_offered_fix(Diagnosis(summary="x", fix=Fix(text="y", patch=patch)), document, finding(**found)).fix
    assert fix is not None
    return fix


def test_a_patch_that_preflight_lets_pass_is_offered() -> None:
    assert offered(SHORTER, always=[error("slow", severity=Severity.WARNING)]) == Fix(text="y", patch=SHORTER)


def test_one_that_preflight_refuses_is_not_and_the_reason_is_told() -> None:
    fix = offered(SHORTER, always=[error("gone")], of_patch=[error("too-short")])
    assert (fix.patch, fix.blocked) == (None, ("too-short.",))


def test_what_blocks_the_start_with_or_without_it_is_told_beside_it() -> None:
    fix = offered(SHORTER, always=[error("model-gone")])
    assert (fix.patch, fix.blocked) == (SHORTER, ("model-gone.",))


def test_what_is_over_once_the_failed_engine_is_gone_blocks_nothing() -> None:
    assert offered(SHORTER, of_patch=[error("memory-held", transient=True)]).patch == SHORTER


def test_one_that_changes_nothing_is_not_offered() -> None:
    assert offered({"max-model-len": 4096}).patch is None


@pytest.mark.parametrize(("document", "kept"), [(DOCUMENT, None), (VLLM, {"vllm.environment.MAX_JOBS": "1"})])
def test_what_only_concerns_vllm_is_offered_for_vllm(document: dict[str, Any], kept: dict[str, Any] | None) -> None:
    assert offered({"vllm.environment.MAX_JOBS": "1"}, document).patch == kept


@pytest.mark.parametrize(("family", "cause"), FROM_OUTSIDE)
def test_what_was_done_to_it_from_outside_is_mended_by_a_start(family: str, cause: str) -> None:
    ended = Diagnosis(summary="x", family=family, cause=cause, fix=Fix(text="y", look="z"))
    fix = with_start_again(ended, "my chat", "r7").fix
    assert fix is not None
    assert (fix.command, fix.look) == ("ingot profile activate 'my chat' --revision r7 --now", "z")
    context = activate.make_context("activate", shlex.split(fix.command)[3:])
    assert (context.params["name"], context.params["revision"], context.params["finished"]) == ("my chat", 7, False)
    assert with_start_again(ended, "file", "") == ended


def test_no_other_failure_is_mended_by_a_start() -> None:
    failed = Diagnosis(summary="x", family="memory", cause="killed", fix=Fix(text="y"))
    assert with_start_again(failed, "m", "r7") == failed
