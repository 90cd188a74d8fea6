"""JSON files of a model folder, read with errors that name the file and the place."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from appliance.checkpoint.errors import CheckpointError
from appliance.home import read_file

MAX_BYTES = 64 * 1024 * 1024


def read_raw(path: Path, id: str, max_bytes: int = MAX_BYTES) -> bytes:
    """The file as it is; `id` prefixes the errors: `<id>-missing`, `<id>-unreadable`."""
    try:
        return read_file(path, max_bytes)
    except FileNotFoundError:
        raise CheckpointError(
            f"{id}-missing",
            f"{path.parent.name} has no {path.name}.",
            file=path,
            remedy="Copy the whole model folder again, including this file.",
        ) from None
    except OSError as error:
        again, permit = "Copy the model folder again.", "Make it a file this user can read."
        raise CheckpointError(
            f"{id}-unreadable",
            f"{path.name} cannot be read: {error.strerror or error}.",
            file=path,
            remedy=again if error.errno == errno.EFBIG else permit,
        ) from error


def read_text(path: Path, id: str, max_bytes: int = MAX_BYTES) -> str:
    """The same as UTF-8 text."""
    try:
        return read_raw(path, id, max_bytes).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{id}-unreadable",
            f"{path.name} is not UTF-8 text: byte {error.start:,} is invalid.",
            file=path,
            remedy="The file is damaged. Copy the model folder again.",
        ) from None


def read_object(path: Path, id: str, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object that the file holds."""
    text = read_text(path, id, max_bytes)
    if text.startswith("version https://git-lfs"):
        raise CheckpointError(
            f"{id}-unreadable",
            f"{path.name} is a Git LFS pointer; the file itself was never downloaded.",
            file=path,
            remedy="Run `git lfs pull` where the model was cloned, then copy the folder again.",
            command="git lfs pull",
        )
    try:
        # Infinity and NaN are let through here: some configs hold them in fields that nothing of ours reads.
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{id}-unreadable",
            f"{path.name} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            file=path,
            evidence=(_line(text, error.lineno),),
            remedy="Correct it there, or copy the model folder again.",
        ) from None
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        raise CheckpointError(
            f"{id}-unreadable",
            f"{path.name} cannot be read: it is nested too deeply or contains a number that is too long.",
            file=path,
            remedy="Copy the model folder again.",
        ) from None
    if not isinstance(data, dict):
        raise CheckpointError(
            f"{id}-unreadable",
            f"{path.name} contains a {type(data).__name__} instead of an object.",
            file=path,
            value=data,
            remedy="Copy the model folder again.",
        )
    return data


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number - 1].strip()[:120] if 0 < number <= len(lines) else ""
