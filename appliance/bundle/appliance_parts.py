"""What makes a bundle install a whole appliance: images with their bills of materials and licences, compose files, and
install.sh."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.bundle.docker_images import DockerImages
from appliance.bundle.entries import Entry, cast_entries, compose_entries, compose_folder
from appliance.bundle.errors import BundleError
from appliance.bundle.images import Chosen, chosen, machine_of, release_of
from appliance.bundle.install_script import install_script
from appliance.bundle.names import RELEASE, ROLES
from appliance.bundle.output import require_room
from appliance.bundle.pack import Appliance, Report
from appliance.vllm.cache_packs.pack import PackError, read_pack

# With matches over 128 MiB, the most that `zstd -d` takes unasked: images hold the same libraries in several places.
# An engine's 1,354 MB: 337 MB in 10 s on two cores; 362 in 13 s without, and 317 in 28 s at level 6.
ZSTD_LEVEL: Final = 3
ZSTD_WINDOW_LOG: Final = 27
INVENTORY: Final = "/usr/share/ingot"
VENV: Final = "/opt/venv"
_VERSION = re.compile(r"^version\s*=\s*(\d+\.\d+)", re.MULTILINE)
_REVISION = re.compile(r"^(revision|down_revision)\b[^=\n]*=\s*(?:[\"']([\w.-]+)[\"']|None)", re.MULTILINE)


@dataclass(frozen=True)
class Wanted:
    """What to include: images by `tag` or by name, the compose files of a folder, and the release's name. `casts` and
    `packs` are only checked against the engine."""

    tag: str | None = None
    images: tuple[str, ...] = ()
    compose: Path | None = None
    release: str | None = None
    casts: tuple[Path, ...] = ()
    packs: tuple[Path, ...] = ()
    allow_stand_in: bool = False


def stager(wanted: Wanted) -> Callable[[Path, Report], Appliance]:
    """Returns a function that saves the images and everything that comes with them into a folder. Everything that can
    be refused is refused here, before anything is saved."""
    docker = DockerImages()
    images = chosen(wanted.tag, wanted.images, docker, allow_stand_in=wanted.allow_stand_in)
    _fit_casts(images["engine"], wanted.casts)
    _fit_packs(images["engine"], wanted.packs)
    release = wanted.release or release_of(images["engine"])
    if not RELEASE.fullmatch(release):
        raise BundleError(
            "release-name",
            f"{release!r} is not a valid release name; set --release to letters, digits, '.', '_' and '-'",
        )
    compose = compose_entries(wanted.compose or compose_folder())
    install_script()  # a broken one is refused before anything is saved

    def stage(folder: Path, report: Report) -> Appliance:
        require_room(folder, sum(image.size for image in images.values()) // 2)
        saved, inventories, schema = [], [], ""
        for role in ROLES:
            image, tag = images[role], f"ingot-{role}:{release}"
            with docker.container(image.id) as container:  # not by its name, which may be another by now
                inventories += _inventory(docker, image, container, folder)
                if role == "console":
                    schema = _schema(docker, container, folder)
            with docker.tagged(image.id, tag):
                saved.append(_save(docker, tag, image, folder, report))
        copied = [_kept(entry, folder) for entry in compose]
        inventories.sort(key=lambda entry: (entry.path.split("/")[0] != "sbom", ROLES.index(_role(entry)), entry.path))
        return Appliance(
            release=release,
            schema=schema,
            machine=machine_of(images["engine"]),
            images=tuple(images[role].row(f"ingot-{role}:{release}") for role in ROLES),
            entries=(*saved, *copied, *inventories),
            installer=install_script(saved[0].sha256),
        )

    return stage


def _role(entry: Entry) -> str:
    return entry.path.split("/")[1].removesuffix(".cdx.json")


def _fit_casts(engine: Chosen, casts: tuple[Path, ...]) -> None:
    for folder in casts:
        architecture, _ = cast_entries(folder)
        if engine.variant != "cuda":
            raise BundleError(
                "cast-mismatch", f"{engine.reference} runs on the CPU and needs no cast; remove --cast {folder}"
            )
        if engine.architecture != architecture:
            raise BundleError(
                "cast-mismatch",
                f"{folder} is a cast for {architecture}, but {engine.reference} is for {engine.architecture}; "
                "use a cast and an engine of the same architecture",
            )


def _fit_packs(engine: Chosen, packs: tuple[Path, ...]) -> None:
    for folder in packs:
        try:
            facts = read_pack(folder).pack.facts
        except PackError as error:
            raise BundleError(error.code, str(error)) from error
        if not engine.vllm:
            raise BundleError(
                "pack-mismatch", f"{engine.reference} has no vLLM, whose code {folder} holds; remove --pack {folder}"
            )
        if facts.architecture != engine.architecture:
            raise BundleError(
                "pack-mismatch",
                f"{folder} is a cache pack for {facts.architecture or 'a CPU'}, but {engine.reference} is for "
                f"{engine.architecture or 'a CPU'}; use a pack and an engine of the same architecture",
            )


def _save(docker: DockerImages, tag: str, image: Chosen, folder: Path, report: Report) -> Entry:
    """An image in the form of `docker save`, compressed on the fly."""
    try:
        import zstandard
    except ImportError as error:
        raise BundleError(
            "no-zstandard", "compressing images needs zstandard, which is not installed; run pip install zstandard"
        ) from error
    parameters = zstandard.ZstdCompressionParameters.from_level(
        ZSTD_LEVEL, window_log=ZSTD_WINDOW_LOG, enable_ldm=True, threads=os.cpu_count() or 1, write_checksum=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = folder / f"{image.role}.tar.zst"
    digest, done = hashlib.sha256(), 0
    with path.open("wb") as out:

        def write(piece: bytes) -> None:
            digest.update(piece)
            out.write(piece)

        for piece in docker.save(tag):
            write(compressor.compress(piece))
            done += len(piece)
            report(f"saving {tag}", done, max(image.size, done + 1))
        write(compressor.flush())
    report(f"saving {tag}", done, done)
    return Entry(f"images/{image.role}.tar.zst", path.stat().st_size, path, digest.hexdigest())


def _kept(entry: Entry, folder: Path) -> Entry:
    """A copy, so that the file cannot change while the bundle is written."""
    path = folder / entry.path
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(entry.source.read_bytes())
    return _entry(entry.path, path)


def _inventory(docker: DockerImages, image: Chosen, container: str, folder: Path) -> list[Entry]:
    """The bill of materials and the licences that lie in an image."""
    into = folder / "inventory" / image.role
    files = docker.copy_out(container, INVENTORY, into)
    below = into / Path(INVENTORY).name
    if not (below / "sbom.cdx.json").is_file() or not (below / "licences").is_dir():
        raise BundleError(
            "no-inventory",
            f"{image.reference} has no inventory in {INVENTORY}; build it with this version's Dockerfile",
        )
    archive = folder / f"{image.role}-licences.tar.gz"
    _archive(archive, below / "licences", sorted(path for path in files if path.is_relative_to(below / "licences")))
    return [
        _entry(f"sbom/{image.role}.cdx.json", below / "sbom.cdx.json"),
        _entry(f"licences/{image.role}/licences.tar.gz", archive),
    ]


def _archive(to: Path, root: Path, files: list[Path]) -> None:
    """Hundreds of small files as one, the same each time: a site reads and hashes one."""
    with (
        to.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in files:
            member = tarfile.TarInfo(path.relative_to(root).as_posix())
            member.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(member, file)


def _entry(name: str, path: Path) -> Entry:
    return Entry(name, path.stat().st_size, path)


def _schema(docker: DockerImages, container: str, folder: Path) -> str:
    """The database schema that the console in the image creates: the last revision."""
    settings = docker.copy_out(container, f"{VENV}/pyvenv.cfg", folder / "schema")
    python = _VERSION.search(settings[0].read_text()) if settings else None
    if python is None:
        raise BundleError(
            "no-python", f"the console image has no Python in {VENV}; build it with this version's Dockerfile"
        )
    versions = f"{VENV}/lib/python{python[1]}/site-packages/migrations/versions"
    before: dict[str, str] = {}
    for path in docker.copy_out(container, versions, folder / "schema"):
        rows: dict[str, str] = dict(_REVISION.findall(path.read_text())) if path.suffix == ".py" else {}
        if rows.get("revision"):
            before[rows["revision"]] = rows.get("down_revision", "")
    heads = set(before) - set(before.values())
    if len(heads) != 1:
        raise BundleError(
            "schema-heads",
            f"the console image has {len(heads)} latest database schemas in {versions}, not one; rebuild it",
        )
    return heads.pop()
