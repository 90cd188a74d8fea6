"""Images of the Docker engine: what they say of themselves, files out of them, and the whole of one as a stream."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, cast

import docker
import docker.errors
import requests

from appliance.bundle.errors import BundleError

# Before it sends the first byte, Docker puts a large image together: minutes on a slow disk.
PATIENCE_S: Final = 3600
MAX_FILE_BYTES: Final = 256 << 20


class DockerImages:
    """The engine that DOCKER_HOST names, or the local one."""

    def __init__(self) -> None:
        with _explained("Docker cannot be reached"):
            self._api: Any = docker.from_env(timeout=PATIENCE_S).api
            self._api.ping()

    def inspect(self, reference: str) -> dict[str, Any]:
        """As `docker image inspect` prints it. Raises BundleError if there is no such image."""
        try:
            return cast(dict[str, Any], self._api.inspect_image(reference))
        except docker.errors.ImageNotFound as error:
            raise BundleError(
                "no-image", f"Docker has no image {reference}; build it, or choose another with --image"
            ) from error
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise BundleError("docker", f"{reference} cannot be inspected: {error}") from error

    @contextlib.contextmanager
    def tagged(self, reference: str, tag: str) -> Iterator[None]:
        """Also tag `reference` as `tag`; a tag that is new is removed afterwards."""
        identity = self.inspect(reference)["Id"]
        with _explained(f"{reference} cannot be tagged"):
            try:
                there = self._api.inspect_image(tag)["Id"]
            except docker.errors.ImageNotFound:
                there = None
            if there not in (None, identity):
                raise BundleError(
                    "tag-taken",
                    f"{tag} is not the same image as {reference}; remove that tag, or choose another --release",
                )
            if there is None:
                self._api.tag(identity, *tag.rsplit(":", 1))
        try:
            yield
        finally:
            if there is None:
                with _explained(f"the tag {tag} cannot be removed again"):
                    self._api.remove_image(tag, noprune=True)

    def save(self, tag: str) -> Iterator[bytes]:
        """The bytes of `docker save`, as they come."""
        with _explained(f"{tag} cannot be saved"):
            yield from self._api.get_image(tag, chunk_size=1 << 20)

    @contextlib.contextmanager
    def container(self, reference: str) -> Iterator[str]:
        """A container of the image that never runs, to read files from."""
        with _explained(f"{reference} cannot be looked into"):
            made = self._api.create_container(reference, command=["none"], network_disabled=True)["Id"]
        try:
            yield made
        finally:
            with _explained(f"the container {made[:12]} of {reference} cannot be removed"):
                self._api.remove_container(made, v=True, force=True)

    def copy_out(self, container: str, path: str, into: Path) -> list[Path]:
        """Write the regular files at or below `path` into the folder `into`, below the last part of `path`; nothing if
        there is no such path. Links and anything outside are left out."""
        try:
            stream, _ = self._api.get_archive(container, path, chunk_size=64 << 10)
        except docker.errors.NotFound:
            return []
        written = []
        with _explained(f"{path} cannot be read from the image"), _streamed(stream) as archive:
            for member in archive:
                place = PurePosixPath(member.name)
                source = archive.extractfile(member) if member.isreg() else None
                if source is None or ".." in place.parts or place.is_absolute() or member.size > MAX_FILE_BYTES:
                    continue
                target = into / place
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, target.open("wb") as out:
                    while piece := source.read(1 << 20):
                        out.write(piece)
                written.append(target)
        return written


class _Stream:
    """Pieces of bytes, read as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


def _streamed(pieces: Iterator[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast(IO[bytes], _Stream(iter(pieces))), mode="r|")


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except docker.errors.APIError as error:
        raise BundleError(
            "docker", f"{what}: Docker reports {error.explanation or error}; fix that and try again"
        ) from error
    except (docker.errors.DockerException, requests.RequestException, tarfile.TarError) as error:
        raise BundleError("docker", f"{what}: {error}; check that Docker is running, and DOCKER_HOST") from error
