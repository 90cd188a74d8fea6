"""CUDA_VISIBLE_DEVICES lists existing devices, in one notation, and agrees with the profile."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from appliance.hardware.visible import ORDER, VISIBLE, VisibleDevices, VisibleEntry, read_visible
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    environ, inventory = subject.engine_environ, subject.context.inventory
    if VISIBLE not in environ or subject.profile.device == "cpu" or not inventory.boards:
        return
    seen = read_visible(environ[VISIBLE], inventory, environ.get(ORDER))
    if seen.problems:
        yield _wrong(subject, seen)
    elif not seen.gpus and subject.profile.device == "auto":
        yield _finding(
            subject,
            "devices-hidden",
            Severity.WARNING,
            f"{VISIBLE} is {environ[VISIBLE]!r}, which hides every GPU. The model runs on the CPU.",
            Fix(text="If the CPU is intended, say so in the profile; otherwise unset the variable.",
                patch={"device": "cpu"}, command=f"unset {VISIBLE}"),
        )  # fmt: skip
    slices = [gpu for gpu in seen.gpus if gpu.parent_uuid]
    if len(slices) > 1:
        yield _finding(
            subject,
            "slices-several",
            Severity.WARNING,
            f"{VISIBLE} lists {len(slices)} MIG slices; CUDA gives a process only one.",
            Fix(text="List the one to use, or name it in the profile's `device`.",
                command=_export(slices[0].uuid)),
        )  # fmt: skip
    yield from _against_the_profile(subject, seen)


def _wrong(subject: Subject, seen: VisibleDevices) -> Finding:
    """One finding for the list: what is wrong with an entry often follows from the one before."""
    first = seen.problems[0]
    named = subject.profile.device != "auto"  # the engine is then shown that one device
    return _finding(
        subject,
        f"devices-{first.wrong}",
        Severity.WARNING if named or seen.gpus else Severity.ERROR,
        f"{VISIBLE}: {first.why}{_rest(seen)}",
        Fix(text="List existing devices, each once, by UUID (`nvidia-smi -L` shows them).",
            command=_export(seen.meant or ",".join(gpu.uuid for gpu in subject.context.inventory.gpus))),
        (*_others(seen.problems[1:]), *(f"here: {gpu}" for gpu in subject.context.inventory.gpus[:8])),
    )  # fmt: skip


def _rest(seen: VisibleDevices) -> str:
    if seen.refused or not seen.gpus:
        return " No GPU can be used."
    left = len(seen.entries) - len(seen.gpus)
    return f" {len(seen.gpus)} of {len(seen.entries)} devices remain." if left else ""


def _others(problems: tuple[VisibleEntry, ...]) -> Iterator[str]:
    yield from (entry.why for entry in problems[:4])


def _against_the_profile(subject: Subject, seen: VisibleDevices) -> Iterator[Finding]:
    wanted = subject.profile.device.lower()
    if wanted == "auto" or not seen.gpus or any(gpu.uuid.lower() == wanted for gpu in seen.gpus):
        return
    yield _finding(
        subject,
        "device-not-visible",
        Severity.WARNING,
        f"The profile uses {subject.profile.device}, which is not in {VISIBLE}. The profile takes precedence.",
        Fix(text="Let the environment decide, or unset the variable and let the profile choose.",
            patch={"device": None}, command=f"unset {VISIBLE}"),
    )  # fmt: skip


def _export(uuids: str) -> str:
    return f"export {VISIBLE}={shlex.quote(uuids)}"


def _finding(
    subject: Subject, id: str, severity: Severity, message: str, fix: Fix, evidence: tuple[str, ...] = ()
) -> Finding:
    return Finding(
        id=id,
        severity=severity,
        message=message,
        field=VISIBLE,
        value=subject.engine_environ[VISIBLE][:80],
        evidence=evidence,
        fix=fix,
    )
