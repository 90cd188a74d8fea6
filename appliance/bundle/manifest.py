"""manifest.json: what a bundle holds, of which versions and for which machine. bundle.env says the same to a shell."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from appliance.bundle.errors import BundleError
from appliance.bundle.names import ARCHITECTURE, MANIFEST, MODEL, PACK, RELEASE

FORMAT: Final = 3
# Format 2 is the same without cache packs.
FORMATS: Final = (2, FORMAT)
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Role = Literal["gate", "console", "engine"]
# What bundle.env can hold, and a shell cannot misread.
Word = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:/-]*$", max_length=256)]
# What a terminal shows as it is.
Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=8192)]


# In each of these a name that we do not know is refused: it would be a field that nobody checks.


class BundledFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member by its path, its size in bytes and the SHA-256 of its content in hex."""

    path: str
    size: Size
    sha256: Digest


class BundledImage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image as it is tagged in the bundle. `source` is the tag that it was taken from, `size` what it takes
    unpacked. `variant`, `architecture` and `vllm` are the engine's."""

    role: Role
    tag: Word
    source: str
    id: str
    size: Size
    version: Word
    revision: str = ""
    licenses: str = ""
    variant: Literal["", "cpu", "cuda"] = ""
    architecture: Word = ""
    vllm: bool = False
    stand_in: str = ""


class ModelNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model by the folder that it becomes, and its checkpoint digest, which a profile can name."""

    name: Word
    digest: str


class PackNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cache pack by its name: the checkpoint digest of its model, the processor and the vLLM that it is for."""

    name: Word
    model: Text
    processor: Text
    vllm: Text

    def __str__(self) -> str:
        return f"cache pack {self.name} (vLLM {self.vllm or 'unknown'}, {self.processor.partition(' (')[0]})"


class Parts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the file was cut: `size` bytes each but the last, and the SHA-256 of each part but the first, which holds
    this manifest and so cannot say its own. With it, a part that is damaged or in another's place can be named."""

    size: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    sha256: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=998)]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`files` are all members that follow the head, in their order. `machine` is that of the images, as `uname -m` has
    it; `schema` the version of the console's database. `created` is in seconds since the epoch."""

    format: int = FORMAT
    kind: Literal["appliance", "models"]
    release: Word
    ingot: Word
    schema: Word = ""
    machine: Literal["", "x86_64", "aarch64"] = ""
    created: Size
    images: tuple[BundledImage, ...] = ()
    models: tuple[ModelNote, ...] = ()
    casts: tuple[Word, ...] = ()
    packs: tuple[PackNote, ...] = ()
    files: tuple[BundledFile, ...]
    parts: Parts | None = None

    def image(self, role: str) -> BundledImage | None:
        return next((image for image in self.images if image.role == role), None)

    def below(self, folder: str) -> tuple[BundledFile, ...]:
        """The files whose path begins with `folder`, which ends in a slash."""
        return tuple(file for file in self.files if file.path.startswith(folder))

    @property
    def knows_packs(self) -> bool:
        return self.format > 2

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)


class _AnyFormat(msgspec.Struct):
    format: int


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest) + b"\n"


def decode(raw: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        BundleError: it is damaged, of a format we do not know, or says what cannot be.
    """
    try:
        found = msgspec.json.decode(raw, type=_AnyFormat).format
        if found not in FORMATS:
            reads = " and ".join(map(str, FORMATS))
            raise BundleError(
                "format",
                f"the bundle has format {found}, and this Ingot reads {reads}; use a matching version of Ingot",
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # msgspec raises all three
        raise BundleError("manifest", f"{MANIFEST} cannot be read ({error}); copy the bundle again") from error
    if what := _fault(manifest):
        raise BundleError("manifest", f"{MANIFEST} {what}; do not use this bundle")
    return manifest


def _fault(manifest: Manifest) -> str | None:
    """What the manifest's own rows say against each other."""
    roles = [image.role for image in manifest.images]
    models = [model.name for model in manifest.models]
    packs = [pack.name for pack in manifest.packs]
    has = {tuple(file.path.split("/")[:2]) for file in manifest.files}
    if not RELEASE.fullmatch(manifest.release):
        return f"names the release {manifest.release!r}, which is not a valid name"
    if manifest.kind == "appliance" and (sorted(roles) != ["console", "engine", "gate"] or not manifest.machine):
        return f"is for an appliance but lists the images {', '.join(roles) or 'none'}, not engine, console and gate"
    if manifest.kind == "models" and (roles or manifest.casts or not (models or packs)):
        return "is for a bundle of models but lists images or casts, or neither models nor cache packs"
    if packs and not manifest.knows_packs:
        return f"has format {manifest.format} but lists cache packs"
    if bad := [name for name in models if not MODEL.fullmatch(name)]:
        return f"names a model {bad[0]!r}, which is not a valid name"
    if bad := [name for name in packs if not PACK.fullmatch(name)]:
        return f"names a cache pack {bad[0]!r}, which is not a valid name"
    if bad := [name for name in manifest.casts if not ARCHITECTURE.fullmatch(name)]:
        return f"names a cast {bad[0]!r}, which is not an architecture"
    for folder, named in (
        ("images", [f"{role}.tar.zst" for role in roles]),
        ("models", models),
        ("casts", list(manifest.casts)),
        ("packs", packs),
    ):
        if {name for first, *rest in has if first == folder for name in rest} != set(named):
            return f"lists {', '.join(named) or 'nothing'} for {folder}/ but has other files there"
        if len(set(named)) != len(named):
            return f"lists something for {folder}/ twice"
    return None
