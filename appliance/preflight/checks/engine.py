"""The engine that the profile names is one that this installation can start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity
from appliance.vllm.installation import OLDEST, read_installation
from appliance.vllm.program import PROGRAM


def run(subject: Subject) -> Iterator[Finding]:
    if subject.profile.engine == "native":
        return
    if subject.vllm is None and subject.context.surroundings is None:
        return  # another machine may well have it: its own front door looks
    if subject.vllm is None:
        yield _finding(
            "engine-not-installed",
            "The profile asks for vLLM, and there is none in this installation.",
            f"Use the native engine; or install vLLM and name its command with {PROGRAM}.",
            subject.profile.engine,
        )
        return
    path = subject.vllm.path
    if not path.is_file() or not os.access(path, os.X_OK):
        why = "is not a program" if path.exists() else "is not there"
        yield _finding("vllm-unusable", f"{path} {why}.", f"Name the `vllm` command with {PROGRAM}.", path)
        return
    installation = read_installation(subject.vllm)
    if installation is None:
        yield _finding(
            "vllm-unusable",
            f"{path} has no vLLM beside it: no installed version is found for its Python.",
            f"Install vLLM into the Python that {path} runs in, or name another with {PROGRAM}.",
            path,
        )
    elif installation.too_old:
        oldest = ".".join(map(str, OLDEST))
        yield _finding(
            "vllm-too-old",
            f"The installed vLLM is {installation.version}; Ingot needs {oldest} or newer.",
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
