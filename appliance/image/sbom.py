"""The bill of materials of an image, in CycloneDX."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component as BomComponent
from cyclonedx.model.component import ComponentType
from cyclonedx.model.license import DisjunctiveLicense, License
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion

from appliance.image.component import Component


def write_sbom(image: str, version: str, components: Sequence[Component]) -> str:
    """As JSON. Equal components give equal text: the serial number is a digest of them, and there is no timestamp."""
    bom = Bom()
    root = BomComponent(name=image, version=version, type=ComponentType.CONTAINER, bom_ref=image)
    bom.metadata.component = root
    bom.metadata.timestamp = None  # type: ignore[assignment]  # the library's type forgets that it may have none
    for component in components:
        url = component.url
        row = BomComponent(
            type=ComponentType.LIBRARY,
            name=url.name,
            version=url.version,
            purl=url,
            bom_ref=url.to_string(),
            description=component.summary or None,
            licenses=_licences(component.licences),
            properties=[Property(name="ingot:licence-texts", value=f"licences/{component.folder}")],
        )
        bom.components.add(row)
    bom.register_dependency(root, bom.components)
    urls = "\n".join(sorted(component.url.to_string() for component in components))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{image} {version}\n{urls}")
    return str(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1))


def _licences(said: tuple[str, ...]) -> Iterator[License]:
    """CycloneDX accepts one expression, or any number of licences by identifier or name."""
    licences = LicenseFactory()
    if len(said) == 1:
        yield licences.make_from_string(said[0])
        return
    for text in said:
        licence = licences.make_from_string(text)
        yield licence if isinstance(licence, DisjunctiveLicense) else DisjunctiveLicense(name=text)
