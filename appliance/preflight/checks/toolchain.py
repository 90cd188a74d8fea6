"""An engine that compiles while it runs finds its tools: a C compiler and Python headers for Triton,
nvcc and ninja for FlashInfer and DeepGEMM, an assembler that knows the GPU."""

from __future__ import annotations

import re
import shlex
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

C_COMPILERS: Final = ("gcc", "clang", "cc")
# Generations that the assembler beside older Tritons does not know (it has a second one for Blackwell since).
NEEDS_NEW_PTXAS: Final = ((10, 3), (12, 1))
PTXAS: Final = "triton/backends/nvidia/bin"
PTXAS_ISSUE: Final = "https://github.com/triton-lang/triton/issues/8539"
NVCC_USERS: Final = ("flashinfer-python", "deep-gemm")


def run(subject: Subject) -> Iterator[Finding]:
    gpu = subject.device.gpu
    if not subject.compiles or subject.profile.forbids_jit:
        return
    if not _c_compiler(subject):
        yield _missing(
            "compiler-missing",
            Severity.ERROR,
            f"No C compiler is on PATH ({', '.join(C_COMPILERS)}), and this engine compiles while it runs.",
            "CC",
            "Install one. The native engine's image needs none: its kernels are cast.",
            "apt-get install gcc" if gpu is not None else "apt-get install g++",
        )
    if gpu is None or subject.packages.file("triton") is None:
        return
    yield from _headers(subject)
    yield from _assembler(subject, gpu.compute_capability)
    users = [name for name in NVCC_USERS if subject.packages.version(name)]
    if users:
        yield from _for_cuda(subject, users)


def _c_compiler(subject: Subject) -> bool:
    named = subject.engine_environ.get("CC", "").split()
    return any(_on_path(subject, name) is not None for name in (*named[:1], *C_COMPILERS))


def _on_path(subject: Subject, program: str) -> Path | None:
    folders = [program] if "/" in program else []
    folders += [f"{folder}/{program}" for folder in subject.engine_environ.get("PATH", "").split(":") if folder]
    return next((Path(place) for place in folders if _is_file(subject.here.at(place))), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _headers(subject: Subject) -> Iterator[Finding]:
    folders = subject.packages.folders
    version = next((match[0] for folder in folders if (match := re.search(r"python3\.\d+", str(folder)))), None)
    if version is None:
        return
    places = [f"/usr/include/{version}", f"/usr/local/include/{version}"]
    if not subject.traits.own_python:
        places.append(sysconfig.get_paths()["include"])
    elif subject.vllm is not None:
        places += [str(home / "include" / version) for home in _homes(subject.vllm.python)]
    if any(_is_file(subject.here.at(place) / "Python.h") for place in places):
        return
    yield _missing(
        "headers-missing",
        Severity.ERROR,
        f"Python.h of {version} is missing; Triton needs it to compile its launchers.",
        "Python.h",
        "Install Python's headers.",
        f"apt-get install {version}-dev",
        tuple(places),
    )


def _homes(python: Path) -> Iterator[Path]:
    """Where the Python is installed: for a virtual environment, also the one that it was made from."""
    environment = python.parent.parent
    yield environment
    try:
        text = (environment / "pyvenv.cfg").read_text(errors="replace")
    except OSError:
        return
    home = re.search(r"^home\s*=\s*(.+)$", text, re.MULTILINE)
    if home:
        yield Path(home[1].strip()).parent


def _assembler(subject: Subject, capability: tuple[int, int]) -> Iterator[Finding]:
    environ = subject.engine_environ
    named = [environ[name] for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH") if environ.get(name)]
    for path in named:
        if not _is_file(subject.here.at(path)):
            yield _missing(
                "ptxas-missing",
                Severity.ERROR,
                f"TRITON_PTXAS_PATH is {path}, which does not exist.",
                "TRITON_PTXAS_PATH",
                "Unset it. Triton brings its own assembler.",
                "unset TRITON_PTXAS_PATH",
            )
    if named or capability not in NEEDS_NEW_PTXAS or subject.packages.file(f"{PTXAS}/ptxas-blackwell"):
        return
    if subject.packages.file(f"{PTXAS}/ptxas") is None:
        return
    newer = next((p for p in _cuda_programs(subject, "ptxas") if p), None) or Path("/usr/local/cuda/bin/ptxas")
    yield _missing(
        "ptxas-too-old",
        Severity.ERROR,
        f"Triton {subject.packages.version('triton')} brings an assembler without support for "
        f"sm_{capability[0]}{capability[1]}a.",
        "TRITON_PTXAS_PATH",
        "Use the assembler of CUDA 13, or install Triton 3.6 or newer.",
        f"export TRITON_PTXAS_PATH={shlex.quote(str(newer))}",
        (PTXAS_ISSUE,),
    )


def _for_cuda(subject: Subject, users: list[str]) -> Iterator[Finding]:
    who = " and ".join(users)
    if _on_path(subject, "nvcc") is None and not _home_has_nvcc(subject):
        found = next(_cuda_programs(subject, "nvcc"), None)
        if found is not None:
            folder = found.parent
            yield _missing(
                "nvcc-not-on-path",
                Severity.WARNING,
                f"nvcc is installed ({found}) but not on PATH, so {who} would not find it.",
                "PATH",
                "Add its folder to the PATH of `ingot serve`.",
                f"export CUDA_HOME={shlex.quote(str(folder.parent))} PATH={shlex.quote(str(folder))}:$PATH",
                (str(found),),
            )
        else:
            yield _missing(
                "nvcc-missing",
                Severity.WARNING,
                f"There is no nvcc. Kernels that {who} has not compiled beforehand cannot run.",
                "PATH",
                "Install the CUDA toolkit, or use a cast or Triton backends.",
                "apt-get install cuda-nvcc-13-0",
                _compiled_beforehand(subject),
            )
    if _on_path(subject, "ninja") is None:
        beside = next((str(place) for place in _beside(subject) if _is_file(subject.here.at(place))), None)
        yield _missing(
            "ninja-not-on-path" if beside else "ninja-missing",
            Severity.WARNING,
            f"ninja is not on PATH{f' (it is installed: {beside})' if beside else ''}. {who} needs it to compile.",
            "PATH",
            "Add its folder to the PATH of `ingot serve`." if beside else "Install it.",
            f"export PATH={shlex.quote(str(Path(beside).parent))}:$PATH" if beside else "apt-get install ninja-build",
        )


def _compiled_beforehand(subject: Subject) -> tuple[str, ...]:
    names = subject.packages.flashinfer_modules
    return (f"compiled beforehand: {', '.join(names)}",) if names else ()


def _home_has_nvcc(subject: Subject) -> bool:
    home = subject.engine_environ.get("CUDA_HOME") or subject.engine_environ.get("CUDA_PATH")
    return bool(home) and _is_file(subject.here.at(f"{home}/bin/nvcc"))


def _cuda_programs(subject: Subject, program: str) -> Iterator[Path]:
    """Beside the engine's packages, and where toolkits are usually installed; the newest first."""
    for folder in subject.packages.folders:
        yield from sorted(folder.glob(f"nvidia/cu*/bin/{program}"), reverse=True)
    usual = subject.here.at("/usr/local")
    try:
        versioned = sorted((path.name for path in usual.glob("cuda-*")), reverse=True)
    except OSError:
        versioned = []
    for name in ("cuda", *versioned):
        place = f"/usr/local/{name}/bin/{program}"
        if _is_file(subject.here.at(place)):
            yield Path(place)


def _beside(subject: Subject) -> Iterator[Path]:
    """The engine's own Python's programs: they are on PATH only where its environment was activated."""
    for folder in subject.packages.folders:
        if len(folder.parents) > 2:
            yield folder.parents[2] / "bin" / "ninja"


def _missing(
    id: str,
    severity: Severity,
    message: str,
    field: str,
    remedy: str,
    command: str,
    evidence: tuple[str, ...] = (),
) -> Finding:
    return Finding(
        id=id,
        severity=severity,
        message=message,
        field=field,
        evidence=evidence,
        fix=Fix(text=remedy, command=command),
    )
