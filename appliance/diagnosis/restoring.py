"""How a model's files come back from where its folder came from: a clone, the hub's cache, or the drive that it was
imported from."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from appliance.checkpoint.import_record import Record, read_record
from appliance.diagnosis.shell_words import is_operand

SNAPSHOTS = "snapshots"
IN_CACHE = "models--"
# Where drives are mounted, as the console's setting has it.
MEDIA, MEDIA_DEFAULT = "INGOT_MEDIA", "/media"
FIRST_PART = re.compile(r"\.\d{3}")
BUNDLES = (".bundle", ".ingot")
MOST_FILES = 40


def changed_since_import(folder: Path) -> tuple[str, ...]:
    """The model's files that are gone or no longer have the size and time with which they were imported. Empty where
    nothing says how it came here."""
    record = read_record(folder)
    if record is None:
        return ()
    return tuple(file for file, known in record.files.items() if not known.is_that_of(folder / file))


def restoring_command(folder: Path, files: Sequence[str]) -> str | None:
    """Of a clone, git's; of a folder in the hub's cache, the hub's own, which needs a network; of an imported model,
    what copies them from its drive, which has to be there. None where it does not show where the folder came from, or
    where a name in it would be taken for an option."""
    if not files or len(files) > MOST_FILES or not all(map(_is_below, files)) or not is_operand(str(folder)):
        return None
    if (folder / ".git").exists():
        git, names = f"git -C {shlex.quote(str(folder))}", shlex.join(files)
        return f"{git} checkout -- {names} && {git} lfs pull --include {shlex.quote(','.join(files))}"
    cached = folder.parent.parent
    if folder.parent.name == SNAPSHOTS and cached.name.startswith(IN_CACHE):
        return _from_the_hub(cached, folder.name, files)
    record = read_record(folder)
    return _from_the_drive(record, folder, files) if record is not None else None


def _from_the_hub(cached: Path, revision: str, files: Sequence[str]) -> str | None:
    repository = cached.name.removeprefix(IN_CACHE).replace("--", "/")
    if not (is_operand(repository) and is_operand(revision)):
        return None
    where = ("--revision", revision, "--cache-dir", str(cached.parent))
    return shlex.join(("hf", "download", repository, *files, *where, "--force-download"))


def _from_the_drive(record: Record, folder: Path, files: Sequence[str]) -> str | None:
    """What is no file any more goes first: nothing could be written in its place."""
    source = Path(os.environ.get(MEDIA) or MEDIA_DEFAULT) / record.source
    if not _is_below(record.source) or not _is_below(record.name or folder.name):
        return None
    odd = [str(folder / file) for file in files if _is_no_file(folder / file)]
    cleared = f"{shlex.join(('rm', '-r', *odd))} && " if odd else ""
    whole = FIRST_PART.sub("", source.suffix) == "" and source.suffix != ""
    bundle = source.with_suffix("") if whole else source
    if bundle.suffix.lower() not in BUNDLES:
        parents = {Path(file).parent for file in files}
        if len(parents) != 1:
            return None
        target = folder / next(iter(parents))
        return cleared + shlex.join(("cp", *(str(source / file) for file in files), str(target)))
    unpack = shlex.join(("-C", str(folder), "--strip-components=2"))
    members = shlex.join(f"models/{record.name or folder.name}/{file}" for file in files)
    if whole:
        return f"{cleared}cat {shlex.quote(str(bundle))}.[0-9]* | tar -xf - {unpack} {members}"
    return f"{cleared}tar -xf {shlex.quote(str(bundle))} {unpack} {members}"


def _is_below(name: str) -> bool:
    """Whether it names something inside a folder, in plain words: anybody can write a record."""
    return is_operand(name) and not name.startswith("/") and ".." not in Path(name).parts


def _is_no_file(path: Path) -> bool:
    return os.path.lexists(path) and not path.is_file()
