"""A pack: a folder with `pack.json`, which lists its files, and what they contain in `objects/`, each by its SHA-256.
It is written once and never changed; where it is signed, `pack.json.minisig` and `signer.pub` lie beside. Compilers
give files names that not every medium can hold: so they stand in the list alone."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from appliance.home import read_file
from appliance.vllm.cache_packs.facts import Facts, Text
from appliance.vllm.command_line import CACHES

MANIFEST: Final = "pack.json"
OBJECTS: Final = "objects"
SIGNATURE: Final = "pack.json.minisig"
SIGNER: Final = "signer.pub"
FORMAT: Final = 3
MAX_MANIFEST_BYTES: Final = 64 << 20
_PIECE: Final = 1 << 20

# Variables whose folders hold compiled code; the others hold settings, downloads and scratch.
PACKED: Final = tuple(
    CACHES[variable]
    for variable in (
        "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR",
        "FLASHINFER_WORKSPACE_BASE", "DG_JIT_CACHE_DIR", "TILELANG_CACHE_DIR", "CUTE_DSL_CACHE_DIR", "CUDA_CACHE_PATH",
    )
)  # fmt: skip
_PART: Final = r"(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f\ud800-\udfff]{1,255}"
_PATH: Final = re.compile(rf"(?:{'|'.join(map(re.escape, PACKED))})(?:/{_PART}){{1,64}}")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class PackError(Exception):
    """A pack cannot be made, read or used. `code` is for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class PackFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file by its path below the caches, such as `triton/<key>/<name>.cubin`. `modified_ns` is since the epoch: ninja
    builds again what is older than its source."""

    path: str
    size: Size
    sha256: Digest
    modified_ns: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Pack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`name` is also the folder's; `profile` what was launched, and `cold_s` how long that took to become ready
    without. `created` is in seconds since the epoch."""

    format: int = FORMAT
    name: str
    profile: Text
    created: Size
    cold_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    facts: Facts
    files: tuple[PackFile, ...]

    @property
    def counted(self) -> str:
        return "1 file" if len(self.files) == 1 else f"{len(self.files):,} files"

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class PackFolder:
    """A pack where it lies. `digest` is that of its list of files, and so of all its content."""

    path: Path
    pack: Pack
    digest: str

    def object(self, file: PackFile) -> Path:
        """Where the content of one of its files lies, which equal files share."""
        return self.path / OBJECTS / file.sha256


class _AnyFormat(msgspec.Struct):
    format: int


def is_path(path: str) -> bool:
    """Whether a pack may hold a file there: below one of the caches, and nowhere else; with names that are text, of as
    many bytes as file systems allow."""
    if len(path) > 4096 or _PATH.fullmatch(path) is None:
        return False
    return all(len(part) <= 255 for part in path.encode().split(b"/"))


def encode(pack: Pack) -> bytes:
    return msgspec.json.format(msgspec.json.encode(pack), indent=1) + b"\n"


def make_store(folder: Path) -> None:
    """A folder for packs, unless it is there: whoever runs an engine may read it, whatever the umask."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)


def open_to_readers(folder: Path) -> None:
    """Let an engine that runs as somebody else read a pack, whatever the umask: compiled code is no secret."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def read_pack(folder: Path) -> PackFolder:
    """Read what a pack says of itself; its files are looked at by whoever copies them.

    Raises:
        PackError: there is no pack, or its list is damaged or of another format.
    """
    try:
        raw = read_file(folder / MANIFEST, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise PackError("not-a-pack", f"{folder} is not a cache pack: {MANIFEST}: {error.strerror or error}") from error
    try:
        found = msgspec.json.decode(raw, type=_AnyFormat).format
        if found != FORMAT:
            raise PackError(
                "format", f"{folder} has format {found}, and this Ingot reads {FORMAT}; make the pack again"
            )
        pack = msgspec.json.decode(raw, type=Pack)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PackError("damaged", f"{folder / MANIFEST} is damaged ({error}); copy the pack again") from error
    paths = [file.path for file in pack.files]
    if not NAME.fullmatch(pack.name):
        raise PackError("damaged", f"{folder / MANIFEST} names the pack {pack.name!r}; do not use it")
    if bad := [path for path in paths if not is_path(path)]:
        raise PackError("damaged", f"{folder / MANIFEST} lists {bad[0]!r}, which no cache holds; do not use this pack")
    listed = set(paths)
    if len(listed) != len(paths) or any(folder in listed for path in paths for folder in _folders(path)):
        raise PackError("damaged", f"{folder / MANIFEST} lists two files of one name; do not use this pack")
    return PackFolder(folder, pack, hashlib.sha256(raw).hexdigest())


def _folders(path: str) -> Iterator[str]:
    return (path[:at] for at, letter in enumerate(path) if letter == "/")


def pieces(folder: PackFolder, file: PackFile) -> Iterator[bytes]:
    """The content of one of its files, piece by piece. What was read counts only once there is no more.

    Raises:
        PackError: the file is missing, lies elsewhere, or is not what was packed.
    """
    path = folder.object(file)
    digest = hashlib.sha256()
    try:
        if path.resolve() != folder.path.resolve() / OBJECTS / file.sha256:
            raise OSError(0, "it is a link")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "it is not a file")
            if status.st_size == file.size:  # or nothing is handed out of what cannot be right
                while piece := opened.read(_PIECE):
                    digest.update(piece)
                    yield piece
    except OSError as error:
        raise PackError("damaged", f"{path} cannot be read ({error.strerror}); copy the pack again") from error
    if status.st_size != file.size or digest.hexdigest() != file.sha256:
        raise PackError("damaged", f"{path} is damaged: its checksum differs; copy the pack again")


def verify(folder: Path) -> PackFolder:
    """Compare the content of every file with its hash, and see that there is nothing else.

    Raises:
        PackError: something is missing, damaged, or not listed.
    """
    found = read_pack(folder)
    contents = {file.sha256: file for file in found.pack.files}
    for file in contents.values():
        for _ in pieces(found, file):
            pass
    for name in sorted(os.listdir(folder / OBJECTS)):
        if name not in contents:
            raise PackError(
                "unlisted", f"{str(folder / OBJECTS / name)!r} is not listed in {MANIFEST}; copy the pack again"
            )
    return found
