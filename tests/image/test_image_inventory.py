"""What the build of an image makes of pyproject.toml, and of what is installed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from appliance.image.component import Component
from appliance.image.debian_packages import debian_packages
from appliance.image.python_packages import python_packages
from appliance.image.requirements import layers, name
from appliance.image.sbom import write_sbom
from appliance.image.vllm_requirements import wanted
from appliance.image.web_files import web_files

ROOT = Path(__file__).resolve().parents[2]

STATUS = """\
Package: alpha
Status: install ok installed
Architecture: amd64
Version: 1:2.0-1
Description: the first
 and more of it

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
Description: removed
"""


def document() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root folder with one Debian package, one of Python without a licence text, and the console's libraries."""
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    words = tmp_path / "usr/share/doc/alpha/copyright"
    words.parent.mkdir(parents=True)
    head = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
    words.write_text(f"{head}Files: *\nLicense: GPL-2+\n\nFiles: debian/*\nLicense: MIT\n")
    packages = tmp_path / "opt/venv/lib/python3.11/site-packages"
    (packages / "beta_one-3.0.dist-info").mkdir(parents=True)
    (packages / "beta_one-3.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.4\nName: Beta_One\nVersion: 3.0\nLicense-Expression: Apache-2.0\n"
    )
    (packages / "console/static").mkdir(parents=True)
    (packages / "console/static/vendor").symlink_to(ROOT / "console/static/vendor")
    return tmp_path


def test_every_dependency_is_in_one_layer():
    """The console's or the engine's, torch in the engine's alone."""
    made = layers(document())
    needed = document()["project"]["dependencies"]
    assert sorted(made["console"] + made["engine"]) == sorted(needed)
    assert "torch" in map(name, made["engine"])


def test_a_layer_of_a_stranger_is_refused():
    """A package that is no longer a dependency is taken off the list, rather than forgotten on it."""
    changed = document()
    changed["tool"]["ingot"]["image"]["engine-only"].append("nobody")
    with pytest.raises(ValueError, match="nobody"):
        layers(changed)


def test_every_package_that_is_named_alone_is_pinned():
    """What is installed without its dependencies gets its version from constraints.txt."""
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().split()}
    made = layers(document())
    assert {name(row) for layer in ("flashinfer", "nvcc", "inventory") for row in made[layer]} <= pinned


def test_debian_packages_are_those_that_are_installed(image: Path):
    (found,) = debian_packages(image)
    assert str(found.url) == "pkg:deb/debian/alpha@1:2.0-1?arch=amd64&distro=debian-12"
    assert (found.licences, found.summary) == (("GPL-2+", "MIT"), "the first")


def test_a_package_without_a_licence_text_gets_the_common_one(image: Path, tmp_path: Path):
    (found,) = python_packages(image, {"Apache-2.0": tmp_path / "Apache-2.0"})
    assert str(found.url) == "pkg:pypi/beta-one@3.0"
    assert found.texts == {"Apache-2.0": tmp_path / "Apache-2.0"}


def test_every_vendored_file_is_known(image: Path):
    """Each library with its licence's text."""
    found = list(web_files(image))
    assert {component.url.name for component in found} == {"htmx.org", "idiomorph", "lucide-static", "uplot"}
    assert all(component.texts for component in found)


def test_the_document_is_valid_and_always_the_same():
    """CycloneDX's own schema accepts it; a second build of the same things is no other document."""
    components = [
        Component(PackageURL("pypi", None, "one", "1.0"), ("MIT",), {}),
        Component(PackageURL("deb", "debian", "two", "2"), ("GPL-2+", "MIT", "custom words"), {}, "the second"),
        Component(PackageURL("npm", None, "three", "3"), ("MIT OR Apache-2.0",), {}),
    ]
    text = write_sbom("ingot-test", "0.1.0", components)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert text == write_sbom("ingot-test", "0.1.0", list(reversed(components)))
    assert "timestamp" not in json.loads(text)["metadata"]


def test_vllm_for_cpus_gets_no_torch_of_its_own():
    asked = ['ray>=2 ; extra == "ray"', "torch==2.13.0", "numpy>=1", "uvicorn[standard]>=0.3", "torchaudio"]
    assert list(wanted(asked)) == ["numpy>=1", "uvicorn[standard]>=0.3"]
