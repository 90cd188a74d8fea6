"""What goes into a bundle from folders: models, casts, compose files."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from appliance.bundle.errors import BundleError
from appliance.bundle.names import ARCHITECTURE, MODEL, clash, is_path
from appliance.checkpoint.digest import checkpoint_digest
from appliance.checkpoint.folder import require_files
from kernels.cast import manifest as cast_manifest
from kernels.cast.errors import CastError


class Entry(NamedTuple):
    """A future member: its path in the bundle, its size, its source, and its hash if known."""

    path: str
    size: int
    source: Path
    sha256: str = ""


def model_entries(folder: Path) -> tuple[str, list[Entry]]:
    """The checkpoint digest of the model in `folder`, and its files without hidden ones.

    Raises:
        BundleError: the folder or a name in it cannot be carried.
        CheckpointError: it is no whole model.
    """
    if not folder.is_dir():
        raise BundleError("not-a-folder", f"{folder} is not a folder; choose a model's folder")
    if not MODEL.fullmatch(folder.name):
        raise BundleError(
            "model-name",
            f"{folder.name!r} is not a valid model name; rename the folder: use letters, digits, '.', '_' "
            "and '-', starting with a letter or digit",
        )
    require_files(folder)
    if not (folder / "config.json").is_file():
        raise BundleError("not-a-model", f"{folder} has no config.json, so it is not a model; choose a model's folder")
    digest = checkpoint_digest(folder)
    return digest, [_entry(f"models/{folder.name}/", folder, path) for path in _files(folder)]


def cast_entries(folder: Path) -> tuple[str, list[Entry]]:
    """The architecture of the cast in `folder`, and its files. Raises BundleError for what is no cast."""
    path = folder / cast_manifest.NAME
    try:
        manifest = cast_manifest.parse(path.read_bytes(), path)
    except (OSError, CastError) as error:
        raise BundleError("not-a-cast", f"{folder} is not a cast ({error}); make one with `ingot cast`") from error
    if not ARCHITECTURE.fullmatch(manifest.architecture):
        raise BundleError(
            "not-a-cast", f"{folder} is a cast for {manifest.architecture!r}, which is not a GPU architecture"
        )
    below = f"casts/{manifest.architecture}/"
    entries = [_entry(below, folder, path)]
    for file in sorted(manifest.files, key=lambda file: file.path):
        entry = _entry(below, folder, folder / file.path)
        if entry.size != file.size:
            raise BundleError(
                "damaged", f"{entry.source} has {entry.size:,} bytes instead of {file.size:,}; make the cast again"
            )
        entries.append(entry._replace(sha256=file.sha256))
    return manifest.architecture, entries


def compose_entries(folder: Path) -> list[Entry]:
    """The compose files of `folder`: compose.yaml and those that add to it. Raises BundleError if there are none."""
    paths = sorted(folder.glob("compose*.yaml"))
    if folder / "compose.yaml" not in paths:
        raise BundleError("no-compose", f"{folder} has no compose.yaml; set --compose to the folder that has it")
    return [_entry("compose/", folder, path) for path in paths]


def compose_folder() -> Path:
    """The folder of the compose files: beside the packages in a checkout, or the current folder if it is a checkout.
    Raises BundleError if it is neither."""
    for folder in (Path(__file__).parents[2], Path.cwd()):
        compose = folder / "compose.yaml"
        if compose.is_file() and "image: ingot-gate:" in compose.read_text(errors="replace"):
            return folder
    raise BundleError("no-compose", "Ingot's compose files were not found; run this in the checkout, or add --compose")


def check_names(entries: list[Entry]) -> None:
    """Raises BundleError unless every file system can hold all of them."""
    if both := clash(entry.path for entry in entries):
        raise BundleError(
            "name-clash", f"{both[0]} and {both[1]} would be the same file on some file systems; rename one"
        )


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def _entry(below: str, folder: Path, path: Path) -> Entry:
    name = below + path.relative_to(folder).as_posix()
    if not is_path(name):
        raise BundleError(
            "file-name", f"{path} has a name that a bundle cannot contain; rename it: use letters, digits and '._+@=-'"
        )
    try:
        status = path.stat()
    except OSError as error:
        raise BundleError("not-readable", f"{path} cannot be read: {error.strerror}; fix or remove it") from error
    if not stat.S_ISREG(status.st_mode):
        raise BundleError("not-a-file", f"{path} is neither a file nor a folder; remove it")
    return Entry(name, status.st_size, path)
