"""Where the libraries of an engine keep what they compiled or fetched: a row each, and the folder that it means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from appliance.engines import NAMES, VLLM
from appliance.preflight.subject import Subject


@dataclass(frozen=True)
class CacheFolder:
    """`variable` names the folder, `below` is what is added to it; without it, it is `default` under HOME. `needed`:
    the engine ends where it cannot write there. `package` is the distribution that uses it."""

    what: str
    variable: str
    default: str
    below: str = ""
    needed: bool = True
    package: str = ""
    engines: tuple[str, ...] = NAMES
    on_cpu: bool = False


class Place(NamedTuple):
    row: CacheFolder
    path: Path


_VLLM: Final = (VLLM.name,)
CACHE_FOLDERS: Final = (
    CacheFolder("Triton's kernels", "TRITON_CACHE_DIR", ".triton/cache", package="triton"),
    CacheFolder("FlashInfer's kernels", "FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer", ".cache/flashinfer",
                package="flashinfer-python"),
    CacheFolder("vLLM's compiled graphs", "VLLM_CACHE_ROOT", ".cache/vllm", engines=_VLLM, on_cpu=True),
    CacheFolder("DeepGEMM's kernels", "DG_JIT_CACHE_DIR", ".deep_gemm", package="deep-gemm", engines=_VLLM),
    CacheFolder("Hub library files", "HF_HOME", ".cache/huggingface", needed=False, engines=_VLLM,
                on_cpu=True),
)  # fmt: skip


def places(subject: Subject) -> Iterator[Place]:
    """Those that this launch uses; vLLM is given folders of its own. Nothing is said where HOME is unknown."""
    if not subject.compiles:
        return
    environ = subject.engine_environ
    for row in CACHE_FOLDERS:
        used = subject.engine in row.engines and (row.on_cpu or subject.device.gpu is not None)
        if not used or (row.package and subject.packages.version(row.package) is None):
            continue
        named, home = environ.get(row.variable, ""), environ.get("HOME", "")
        if named.startswith("/"):
            yield Place(row, Path(named) / row.below)
        elif home.startswith("/"):
            yield Place(row, Path(home) / row.default)
