"""Where a profile's model lies: a folder under the models folder, or the bundled model."""

from __future__ import annotations

import difflib
import re
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.json_file import read_object
from appliance.checkpoint.safetensors import read_index
from appliance.home import Home
from appliance.profile.schema import BUNDLED_MODEL

BUNDLED_FOLDER: Final = Path(__file__).parents[1] / "selftest" / "model"
# What every model folder has, each with the names under which it may lie.
REQUIRED: Final = (
    ("config.json",),
    ("tokenizer.json", "tokenizer.model"),
    ("model.safetensors", "model.safetensors.index.json"),
)
MAX_OPTIONS: Final = 8
"""Models that are offered in the place of one that is missing."""

_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def locate(path: str, home: Home) -> Path:
    """The folder that `model.path` names, with every link resolved.

    Raises CheckpointError when there is none, or when the path, the folder or a file in it leads out of the models
    folder.
    """
    if path == BUNDLED_MODEL:
        if not BUNDLED_FOLDER.is_dir():
            raise _error("model-missing", path, "The bundled model is not installed.", "Install Ingot again.")
        return BUNDLED_FOLDER
    try:
        models = home.models.resolve()
        _refuse_outside(path, home, models)
        folder = (models / path).resolve()
        if not folder.is_relative_to(models):
            raise _outside(path, f"{path} is a link to {folder}, outside the models folder {models}.")
        if not folder.exists():
            raise _missing(path, home)
        if not folder.is_dir():
            raise _not_a_folder(path, folder)
        for entry in folder.iterdir():
            if entry.is_symlink() and not (target := entry.resolve()).is_relative_to(models):
                message = f"{path}/{entry.name} is a link to {target}, outside the models folder {models}."
                raise _outside(path, message)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, CheckpointError):
            raise
        # A loop of links is a RuntimeError in Python 3.11 and 3.12, an OSError later; a NUL in a path a ValueError.
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        remedy = "Make it a folder this user can read."
        raise _error("model-unreadable", path, f"The folder {path!r} cannot be opened: {why}.", remedy) from error
    return folder


def require_files(folder: Path) -> None:
    """Raises CheckpointError that names every file of `REQUIRED` that the folder lacks."""
    missing = [" or ".join(names) for names in REQUIRED if not any((folder / name).exists() for name in names)]
    if len(missing) > 1:  # a single one is better explained by the check that reads it
        raise CheckpointError(
            "model-incomplete",
            f"{folder.name} is missing {', '.join(missing)}.",
            file=folder,
            field="model.path",
            value=folder.name,
            evidence=tuple(sorted(entry.name for entry in folder.iterdir())[:8]),
            remedy="Copy the whole model folder: config, tokenizer and safetensors files.",
        )


def model_names(home: Home) -> list[str]:
    """Folders under the models folder that hold a config.json, relative to it, at most two levels down; sorted. Hidden
    ones are left out: what is still being copied lies in them."""
    try:
        found = [p.parent for pattern in ("*/config.json", "*/*/config.json") for p in home.models.glob(pattern)]
    except OSError:
        return []
    names = [PurePosixPath(folder.relative_to(home.models)) for folder in found]
    return sorted(str(name) for name in names if not any(part.startswith(".") for part in name.parts))


def is_whole(folder: Path) -> bool:
    """Whether a model folder has its config, a tokenizer, and every weight file with a header that can be read."""
    try:
        read_object(folder / "config.json", "config")
        read_index(folder)
        return all(any((folder / name).exists() for name in names) for names in REQUIRED)
    except (CheckpointError, OSError):
        return False


def _error(
    id: str,
    path: str,
    message: str,
    remedy: str,
    patch: dict[str, Any] | None = None,
    options: tuple[dict[str, Any], ...] = (),
) -> CheckpointError:
    return CheckpointError(id, message, field="model.path", value=path, remedy=remedy, patch=patch, options=options)


def _outside(path: str, message: str) -> CheckpointError:
    remedy = "Move the model into the models folder, or set INGOT_MODELS to its parent folder."
    return _error("model-outside", path, message, remedy)


def _refuse_outside(path: str, home: Home, models: Path) -> None:
    pure = PurePosixPath(path)
    if pure.is_absolute() or path.startswith("~"):
        for base in (home.models, models):
            if pure.is_relative_to(base) and pure != PurePosixPath(base):
                relative = str(pure.relative_to(base))
                remedy = f"Write `{relative}`."
                message = f"{path} is an absolute path. Model paths are relative to the models folder."
                raise _error("model-outside", path, message, remedy, {"model.path": relative})
        raise _outside(path, f"{path} is outside the models folder {models}.")
    if ".." in pure.parts:
        raise _outside(path, f"{path} contains `..`.")
    if not pure.parts:
        raise _error("model-missing", path, f"{path!r} is the models folder itself.", "Name a model folder inside it.")


def _missing(path: str, home: Home) -> CheckpointError:
    names = model_names(home)
    close = difflib.get_close_matches(path, names, n=MAX_OPTIONS, cutoff=0.5)
    nearest = [name for name in close if is_whole(home.models / name)][:1]
    nearest = nearest or difflib.get_close_matches(path, [BUNDLED_MODEL], cutoff=0.75)
    if not nearest:
        same = (name for name in names if PurePosixPath(name).name == PurePosixPath(path).name)
        nearest = [name for name in same if is_whole(home.models / name)][:1]
    where = f"in the models folder {home.models}"
    if nearest:
        what = "bundled model" if nearest[0] == BUNDLED_MODEL else "nearest model there"
        remedy = f"Did you mean `{nearest[0]}`, the {what}?"
        return _error("model-missing", path, f"{path} was not found {where}.", remedy, {"model.path": nearest[0]})
    if not home.models.is_dir():
        remedy = "Create it and put the model into it, or set INGOT_MODELS to the model's parent folder."
        return _error("model-missing", path, f"The models folder {home.models} does not exist.", remedy)
    if _HUB_ID.fullmatch(path):
        message = f"{path} was not found {where}. It looks like the id of a hub repository."
        remedy = "Ingot downloads nothing. Copy the repository into the models folder and use that folder's name."
        return _error("model-is-hub-id", path, message, remedy)
    others = list(islice((name for name in names if is_whole(home.models / name)), MAX_OPTIONS))
    remedy = f"Copy it there, or choose one of: {', '.join(others)}." if others else "Copy the model's folder there."
    options = tuple({"model.path": name} for name in others)
    return _error("model-missing", path, f"{path} was not found {where}.", remedy, options=options)


def _not_a_folder(path: str, file: Path) -> CheckpointError:
    if file.suffix == ".gguf":
        remedy = "Use the model's original Hugging Face folder with config.json and safetensors files."
        return _error("model-is-gguf", path, f"{path} is a GGUF file. Ingot's engines do not read GGUF.", remedy)
    parent = str(PurePosixPath(path).parent)
    if parent != "." and (file.parent / "config.json").exists():
        remedy = f"Name the folder: `{parent}`."
        return _error("model-not-a-folder", path, f"{path} is a file, not a folder.", remedy, {"model.path": parent})
    return _error(
        "model-not-a-folder", path, f"{path} is a file, not a folder.", "Name the folder that contains config.json."
    )
