"""Which images go into a bundle, and whether they may: three roles, of one build and one kind of processor, on a base
that may be shipped."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from appliance.bundle.errors import BundleError
from appliance.bundle.manifest import BundledImage
from appliance.bundle.names import ARCHITECTURE, ROLES

MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}  # Docker's word -> that of `uname -m`
LABEL: Final = "org.opencontainers.image."
STAND_IN: Final = "stand-in"
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Images(Protocol):
    def inspect(self, reference: str) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Chosen:
    """An image for a role, and what its labels say."""

    role: str
    reference: str
    id: str
    size: int
    docker_architecture: str
    system: str
    labels: Mapping[str, str]

    @property
    def version(self) -> str:
        return self.labels.get(f"{LABEL}version", "")

    @property
    def revision(self) -> str:
        """The source revision; empty if it was not given when the image was built."""
        said = self.labels.get(f"{LABEL}revision", "")
        return "" if said == "unknown" else said

    @property
    def variant(self) -> str:
        return self.labels.get("ingot.variant", "") if self.role == "engine" else ""

    @property
    def architecture(self) -> str:
        return self.labels.get("ingot.arch", "") if self.variant == "cuda" else ""

    @property
    def vllm(self) -> bool:
        return self.role == "engine" and self.labels.get("ingot.vllm") == "1"

    def row(self, tag: str) -> BundledImage:
        """The image's entry in the manifest."""
        return BundledImage(
            role=self.role,  # type: ignore[arg-type]  # one of ROLES
            tag=tag,
            source=self.reference,
            id=self.id,
            size=self.size,
            version=self.version,
            revision=self.revision,
            licenses=self.labels.get(f"{LABEL}licenses", ""),
            variant=self.variant,  # type: ignore[arg-type]  # checked below
            architecture=self.architecture,
            vllm=self.vllm,
            stand_in=self.labels.get(STAND_IN, ""),
        )


def chosen(tag: str | None, named: Sequence[str], docker: Images, *, allow_stand_in: bool) -> dict[str, Chosen]:
    """The image of each role: that of `tag`, unless `named` has another.

    Raises:
        BundleError: a role is unknown, given twice or missing, or the images do not match.
    """
    references = {role: f"ingot-{role}:{tag}" for role in ROLES} if tag else {}
    given = [_named(one) for one in named]
    if twice := {role for role, _ in given if [one for one, _ in given].count(role) > 1}:
        raise BundleError("image-twice", f"there are two images for {min(twice)}; remove one")
    references |= dict(given)
    if missing := [role for role in ROLES if role not in references]:
        raise BundleError(
            "no-image", f"there is no image for {' and '.join(missing)}; add --image, or --tag for all three"
        )
    images = {role: _look(role, references[role], docker) for role in ROLES}
    for code, fault in FAULTS.items():
        if (code != "stand-in" or not allow_stand_in) and (what := fault(list(images.values()))):
            raise BundleError(code, what)
    return images


def machine_of(image: Chosen) -> str:
    return MACHINES[image.docker_architecture]


def release_of(image: Chosen) -> str:
    """The default name of the release."""
    return "-".join(part for part in (image.version, image.revision[:12]) if part)


def _named(argument: str) -> tuple[str, str]:
    """`ingot-engine:TAG`, with a registry before it or not, or `engine=ANY/NAME:TAG`."""
    role, separator, reference = argument.partition("=")
    if not separator:
        reference = argument
        role = argument.rsplit("/", 1)[-1].split(":")[0].split("@")[0].removeprefix("ingot-")
    if role not in ROLES:
        raise BundleError(
            "image-role", f"{argument!r} does not name a role; write it as engine={reference}, or use console= or gate="
        )
    return role, reference


def _look(role: str, reference: str, docker: Images) -> Chosen:
    found = docker.inspect(reference)
    return Chosen(
        role=role,
        reference=reference,
        id=found["Id"],
        size=found["Size"],
        docker_architecture=found["Architecture"],
        system=found["Os"],
        labels=(found.get("Config") or {}).get("Labels") or {},
    )


def _unlabelled(images: Sequence[Chosen]) -> str | None:
    for image in images:
        if not _VERSION.fullmatch(image.version) or (image.role == "engine" and image.variant not in ("cpu", "cuda")):
            return f"{image.reference} has no version or variant label; build it with this version's Dockerfile"
    return None


def _stand_in(images: Sequence[Chosen]) -> str | None:
    for image in images:
        if STAND_IN in image.labels:
            return (
                f"{image.reference} has a stand-in base ({image.labels[STAND_IN]}) with a test machine's certificates; "
                "build it on the real base, or add --allow-stand-in for a test"
            )
    return None


def _machines(images: Sequence[Chosen]) -> str | None:
    for image in images:
        if image.system != "linux" or image.docker_architecture not in MACHINES:
            known, found = " and ".join(MACHINES), f"{image.system}/{image.docker_architecture}"
            return f"{image.reference} is for {found}; Ingot runs on Linux with {known}; build it for one of them"
        if image.docker_architecture != images[0].docker_architecture:
            return (
                f"{images[0].reference} is for {images[0].docker_architecture}, but {image.reference} is for "
                f"{image.docker_architecture}; use images for one processor architecture"
            )
    return None


def _builds(images: Sequence[Chosen]) -> str | None:
    for image in images[1:]:
        for what, mine, other in (
            ("version", image.version, images[0].version),
            ("revision", image.revision, images[0].revision),
        ):
            if mine != other:
                return (
                    f"{image.reference} has {what} {mine or 'none'}, but {images[0].reference} has {other or 'none'}; "
                    "build all three from one checkout"
                )
    return None


def _variant(images: Sequence[Chosen]) -> str | None:
    engine = next(image for image in images if image.role == "engine")
    if engine.variant == "cuda" and not ARCHITECTURE.fullmatch(engine.architecture):
        return f"{engine.reference} has no GPU architecture label; build it with ARCH"
    return None


FAULTS: Final[dict[str, Callable[[Sequence[Chosen]], str | None]]] = {
    "unlabelled": _unlabelled,
    "stand-in": _stand_in,
    "processor": _machines,
    "image-mismatch": _builds,
    "no-architecture": _variant,
}
"""Reasons to refuse images, by the code of their error; each returns the text, or None."""
