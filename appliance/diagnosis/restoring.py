"""How a model's files come back from where its folder came from: a clone, the hub's cache, or the drive that it was
imported from."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from appliance.checkpoint.import_record import Record, read_record
from appliance.diagnosis.shell_words import is_operand
from appliance.home import read_file

SNAPSHOTS = "snapshots"
IN_CACHE = "models--"
# Where drives are mounted, as the console's setting has it.
MEDIA, MEDIA_DEFAULT = "INGOT_MEDIA", "/media"
FIRST_PART = re.compile(r"\.\d{3}")
BUNDLES = (".bundle", ".ingot")
WEIGHTS = ("*.safetensors", "*.index.json")
MOST_FILES = 40
MOST_BYTES = 64 << 20
# How a text begins that is not plain UTF-8, and what Python and iconv both call its encoding.
BEHIND_A_MARK = "UTF-8-SIG"
ENCODINGS = ((b"\xef\xbb\xbf", BEHIND_A_MARK), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))


def changed_since_import(folder: Path) -> tuple[str, ...]:
    """The model's files that are gone or no longer have the size and time with which they were imported. Empty where
    nothing says how it came here."""
    record = read_record(folder)
    if record is None:
        return ()
    return tuple(file for file, known in record.files.items() if not known.is_that_of(folder / file))


def in_words(files: Sequence[str]) -> str:
    """One or more of them: the first, and how many others."""
    first, *others = files
    return f"{first} and {len(others)} more file{'s' * (len(others) > 1)}" if others else first


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
    """What is no file any more goes first: nothing could be written in its place. None where weights, or an index of
    them, came later: with those the model is another one even then."""
    if any(file.name not in record.files for pattern in WEIGHTS for file in folder.glob(pattern)):
        return None
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


def recoding_command(path: Path) -> str | None:
    """What makes UTF-8 of a JSON file that an editor saved otherwise; None where it is none in any encoding."""
    try:
        data = read_file(path, MOST_BYTES)
    except OSError:
        return None
    encoding = next((name for mark, name in ENCODINGS if data.startswith(mark)), None)
    if encoding is None or not is_operand(str(path)) or not _holds_json(data, encoding):
        return None
    name = shlex.quote(str(path))
    if encoding == BEHIND_A_MARK:
        return rf"sed -i '1s/^\xEF\xBB\xBF//' {name}"
    return f"iconv -f {encoding} -t UTF-8 -o {name}.utf-8 {name} && mv {name}.utf-8 {name}"


def _holds_json(data: bytes, encoding: str) -> bool:
    try:
        json.loads(data.decode(encoding))
    except (ValueError, RecursionError):
        return False
    return True


def _is_below(name: str) -> bool:
    """Whether it names something inside a folder, in plain words: anybody can write a record."""
    return is_operand(name) and not name.startswith("/") and ".." not in Path(name).parts


def _is_no_file(path: Path) -> bool:
    return os.path.lexists(path) and not path.is_file()
