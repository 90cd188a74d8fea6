"""`python -m appliance.image.inventory --image DIR --name ingot-console --out DIR`: the contents of an
image as `sbom.cdx.json`, and all licences in `licences`. DIR is the image's root folder."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from packageurl import PackageURL

from appliance import __version__
from appliance.image.component import Component
from appliance.image.debian_packages import common_licences, debian_packages
from appliance.image.python_packages import python_packages
from appliance.image.sbom import write_sbom
from appliance.image.web_files import web_files


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m appliance.image.inventory", description=__doc__)
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--licence", type=Path, default=Path("LICENSE"), help="Ingot's own")
    options = parser.parse_args()
    common = common_licences(options.image)
    components = [
        _ingot(options.licence),
        *python_packages(options.image, common),
        *web_files(options.image),
        *debian_packages(options.image),
    ]
    components = list({component.url: component for component in components}.values())
    _copy_texts(components, common, options.out / "licences")
    (options.out / "sbom.cdx.json").write_text(write_sbom(options.name, __version__, components))
    bare = [component.url.to_string() for component in components if not component.texts]
    print(f"{options.name}: {len(components)} components" + (f", no licence text of {', '.join(bare)}" if bare else ""))


def _ingot(licence: Path) -> Component:
    return Component(
        url=PackageURL("pypi", None, "ingot", __version__), licences=("Apache-2.0",), texts={"LICENSE": licence}
    )


def _copy_texts(components: Sequence[Component], common: dict[str, Path], folder: Path) -> None:
    texts = {Path("deb/common-licenses", name): path for name, path in common.items()}
    for component in components:
        texts |= {component.folder / name: path for name, path in component.texts.items()}
    for name, path in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)


if __name__ == "__main__":
    main()
