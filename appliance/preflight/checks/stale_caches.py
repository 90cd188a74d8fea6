"""The caches hold nothing from another version, architecture or build."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from appliance.packages import release
from appliance.preflight.cache_folders import Place, places
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

# Entries of a cache that are looked at: what is stale comes in generations, so that some are like all.
LOOKED_AT = 200
_FLASHINFER_VERSION = re.compile(r"\d+\.\d+\.\d+[\w.+]*")
_MANY = 5000


def run(subject: Subject) -> Iterator[Finding]:
    for place in places(subject):
        look = _LOOKS.get(place.row.variable)
        if look is not None:
            yield from look(subject, place)


def _triton(subject: Subject, place: Place) -> Iterator[Finding]:
    """Each kernel's folder has a JSON file that names Triton's version and the architecture. Such entries have keys of
    their own, so that they only take room."""
    installed = subject.packages.version("triton") or ""
    others: set[str] = set()
    for entry in _entries(subject.here.at(place.path)):
        for file in _entries(entry, suffix=".json"):
            if file.name.startswith("__grp__"):
                continue
            version = _read(file).get("triton_version")
            if isinstance(version, str) and release(version) and release(version) != release(installed):
                others.add(version)
            break
    if others:
        yield _finding(
            place,
            Severity.INFO,
            f"{place.path} holds kernels of Triton {', '.join(sorted(others)[:3])}; {installed} is installed and "
            "does not use them.",
            "Nothing to do. Clearing it frees space.",
            place.path,
        )


def _flashinfer(subject: Subject, place: Place) -> Iterator[Finding]:
    """Newer versions keep to <version>/<architecture>/cached_ops; older ones to <architecture>/cached_ops, which the
    next version then took for its own."""
    installed = subject.packages.version("flashinfer-python") or ""
    entries = _entries(subject.here.at(place.path))
    versions = [entry.name for entry in entries if _FLASHINFER_VERSION.fullmatch(entry.name)]
    bare = [entry.name for entry in entries if re.fullmatch(r"\d{2,3}[a-f]?(_\d{2,3}[a-f]?)*", entry.name)]
    if bare and not versions:
        yield _finding(
            place,
            Severity.WARNING,
            f"{place.path} holds kernels of an unknown FlashInfer version ({installed} is installed). "
            "Kernels of another version fail with an undefined symbol.",
            "Clear it. What is needed is compiled again.",
            place.path,
        )
    elif versions and release(installed) and all(release(version) != release(installed) for version in versions):
        yield _finding(
            place,
            Severity.INFO,
            f"{place.path} holds kernels of FlashInfer {', '.join(sorted(versions)[:3])}; {installed} does not use "
            "them and compiles its own.",
            "Nothing to do. Clearing it frees space.",
            place.path,
        )


def _vllm(subject: Subject, place: Place) -> Iterator[Finding]:
    """A folder of graphs does not name its version: one that was written before vLLM or torch was installed is of
    another. With some versions, such a graph is found and then not the right one (vLLM #18851)."""
    if subject.profile.enforce_eager:
        return
    found = [subject.packages.distributions.get(name) for name in (*subject.traits.distributions, "torch")]
    installed = max((when for item in found if item and (when := item.installed)), default=None)
    if installed is None:
        return
    folder = place.path / "torch_compile_cache"
    old = [entry for entry in _entries(subject.here.at(folder)) if 0 < _changed(entry) < installed]
    if old:
        yield _finding(
            place,
            Severity.WARNING,
            f"{folder} holds {len(old)} compiled {'graphs' if len(old) > 1 else 'graph'} from before this vLLM and "
            "torch were installed.",
            "Clear them. They are compiled again at the next start, which takes a minute longer.",
            folder,
            ("https://github.com/vllm-project/vllm/issues/18851",),
        )


def _deep_gemm(subject: Subject, place: Place) -> Iterator[Finding]:
    found = subject.packages.distributions.get("deep-gemm")
    installed = found.installed if found else None
    old = [e for e in _entries(subject.here.at(place.path / "cache")) if installed and 0 < _changed(e) < installed]
    if old:
        yield _finding(
            place,
            Severity.WARNING,
            f"{place.path} holds {len(old)} kernels from before this DeepGEMM was installed.",
            "Clear it. They are compiled again when needed.",
            place.path,
        )


_LOOKS = {
    "TRITON_CACHE_DIR": _triton,
    "FLASHINFER_WORKSPACE_BASE": _flashinfer,
    "VLLM_CACHE_ROOT": _vllm,
    "DG_JIT_CACHE_DIR": _deep_gemm,
}


def _entries(folder: Path, suffix: str = "") -> list[Path]:
    """Some of a folder's entries, however many it has."""
    found: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if entry.name.endswith(suffix):
                    found.append(Path(entry.path))
                if len(found) >= LOOKED_AT or number >= _MANY:
                    break
    except OSError:
        return []
    return found


def _changed(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(1 << 16))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _finding(
    place: Place, severity: Severity, message: str, remedy: str, folder: Path, evidence: tuple[str, ...] = ()
) -> Finding:
    return Finding(
        id="cache-stale",
        severity=severity,
        message=message,
        field=place.row.variable,
        value=str(folder),
        evidence=evidence,
        fix=Fix(text=remedy, command=f"rm -r {shlex.quote(str(folder))}"),
    )
