"""The engine named in the profile is installed and can be started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity
from appliance.vllm.installation import OLDEST, read_installation
from appliance.vllm_program import PROGRAM


def run(subject: Subject) -> Iterator[Finding]:
    if not subject.traits.own_python:
        return
    if subject.vllm is None and subject.context.surroundings is None:
        return  # another machine may well have it; its own front door checks
    if subject.vllm is None:
        yield _finding(
            "engine-not-installed",
            "The profile uses vLLM, which is not installed here.",
            f"Use the native engine, or install vLLM and set {PROGRAM} to its command.",
            subject.profile.engine,
        )
        return
    path = subject.vllm.path
    if not path.is_file() or not os.access(path, os.X_OK):
        why = "is not executable" if path.exists() else "does not exist"
        yield _finding("vllm-unusable", f"{path} {why}.", f"Set {PROGRAM} to the `vllm` command.", path)
        return
    installation = read_installation(subject.vllm)
    if installation is None:
        yield _finding(
            "vllm-unusable",
            f"No installed vLLM was found for the Python of {path}.",
            f"Install vLLM for the Python that {path} uses, or set {PROGRAM} to another command.",
            path,
        )
    elif installation.too_old:
        oldest = ".".join(map(str, OLDEST))
        yield _finding(
            "vllm-too-old",
            f"vLLM {installation.version} is installed. Ingot needs {oldest} or newer.",
            f"Install vLLM {oldest} or newer, or use the native engine.",
            path,
        )


def _finding(id: str, message: str, remedy: str, value: str | Path) -> Finding:
    return Finding(
        id=id,
        severity=Severity.ERROR,
        message=message,
        field="engine" if isinstance(value, str) else PROGRAM,
        value=str(value),
        fix=Fix(text=remedy, patch={"engine": "native"}),
    )
