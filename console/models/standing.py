"""Compares a model to be imported with what the models folder has under its name: by the record of its import, without
reading the weights again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from appliance.checkpoint.import_record import read_record


def standing(models: Path, name: str, sizes: Mapping[str, int], digests: Mapping[str, str]) -> str:
    """`free`: the name is not used. `here`: the same model, imported and unchanged since. `alike`: files of the same
    names and sizes, whose content has not been compared. `taken`: another model has the name."""
    folder = models / name
    if not os.path.lexists(folder):
        return "free"
    try:
        present = {file: (folder / file).stat() for file in sizes}
    except OSError:
        return "taken"
    if any(status.st_size != sizes[file] for file, status in present.items()):
        return "taken"
    record = read_record(folder)
    if record is None or not digests:
        return "alike"
    for file in present:
        known = record.files.get(file)
        if known is None or not known.is_that_of(folder / file):
            return "alike"
        if known.sha256 != digests[file]:
            return "taken"
    return "here"


def free_name(models: Path, name: str) -> str:
    """`Qwen3-8B-2`, if Qwen3-8B is taken."""
    number = 2
    while os.path.lexists(models / f"{name}-{number}"):
        number += 1
    return f"{name}-{number}"
