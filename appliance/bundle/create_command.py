"""`ingot bundle create`: gather, write and sign."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import click
import msgspec

from appliance.bundle.errors import BundleError
from appliance.bundle.telling import told

PATH = click.Path(path_type=Path)
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}  # powers of ten: 4G fits FAT32


class PartSize(click.ParamType[int]):
    """A number of bytes, such as 4G or 650M."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).upper()
        number, unit = (text[:-1], text[-1]) if text and not text[-1].isdigit() else (text, "")
        if not number.isdecimal() or unit not in _UNITS or int(number) < 1:
            self.fail(
                f"{value!r} is not a size; use a form such as 4G (4,000,000,000 bytes), 650M or a number of bytes",
                param,
                ctx,
            )
        return int(number) * _UNITS[unit]


@click.command()
@click.option("--model", "models", type=PATH, multiple=True, metavar="DIR", help="The folder of a model to include.")
@click.option(
    "--tag", metavar="TAG", help="Include the images ingot-gate, ingot-console and ingot-engine with this tag."
)
@click.option(
    "--image", "images", multiple=True, metavar="[ROLE=]IMAGE", help="An image to use instead of the one from --tag."
)
@click.option("--cast", "casts", type=PATH, multiple=True, metavar="DIR", help="A cast to include.")
@click.option("--pack", "packs", type=PATH, multiple=True, metavar="DIR", help="A cache pack to include.")
@click.option("--compose", type=PATH, metavar="DIR", help="The folder of the compose files.  [default: this checkout]")
@click.option("--release", metavar="NAME", help="The release's name.  [default: the images' version and revision]")
@click.option("--sign", type=PATH, metavar="KEY", help="The secret key to sign with; see `ingot bundle key`.")
@click.option("--password-file", type=PATH, help="A file whose first line is the key's password.  [default: ask]")
@click.option("--unsigned", is_flag=True, help="Do not sign the bundle. Only for models.")
@click.option("--split", type=PartSize(), metavar="SIZE", help="Split into OUT.001, OUT.002, ... of at most this size.")
@click.option("--allow-stand-in", is_flag=True, help="Accept images with a test machine's stand-in base.")
@click.option("--out", type=PATH, required=True, metavar="FILE", help="The bundle to write.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def create(
    models: tuple[Path, ...],
    tag: str | None,
    images: tuple[str, ...],
    casts: tuple[Path, ...],
    packs: tuple[Path, ...],
    compose: Path | None,
    release: str | None,
    sign: Path | None,
    password_file: Path | None,
    unsigned: bool,
    split: int | None,
    allow_stand_in: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Create a bundle: with --tag or --image one that installs the appliance, else one of models and cache packs."""
    from appliance.bundle import pack
    from appliance.bundle.password import asker
    from appliance.bundle.progress import shown
    from appliance.bundle.signature import Key

    with told(as_json), _ended_cleanly():
        with_images = bool(tag or images)
        if unsigned is bool(sign):
            raise BundleError(
                "no-key", "there is no signing key; add --sign KEY, or --unsigned for an unsigned bundle of models"
            )
        if unsigned and with_images:
            raise BundleError(
                "unsigned", "a bundle with images must be signed, as install.sh accepts no other; add --sign KEY"
            )
        if not with_images and (casts or compose or not (models or packs)):
            raise BundleError(
                "nothing-to-bundle",
                "there is nothing to bundle; add --model DIR or --pack DIR, or --tag TAG for the appliance's images",
            )
        stage = None
        if with_images:
            from appliance.bundle.appliance_parts import Wanted, stager

            stage = stager(Wanted(tag, images, compose, release, casts, packs, allow_stand_in))
        order = pack.Order(
            out=out.absolute(),
            key=Key.read(sign, asker(str(sign), password_file)) if sign else None,
            models=[model.absolute() for model in models],
            casts=casts,
            packs=[folder.absolute() for folder in packs],
            part_size=split,
            stage_appliance=stage,
        )
        with shown(as_json) as report:  # not before: a bar and a question for a password do not go together
            written = pack.create(order, report)
    if as_json:
        click.echo(msgspec.json.encode(written))
        return
    what = [f"release {written.release} for {written.machine}"] if written.images else []
    what += [f"model {model.name}" for model in written.models] + [str(note) for note in written.packs]
    parts = f" in {len(written.parts.sha256) + 1} parts" if written.parts else ""
    click.echo(
        f"{out}{parts} contains {', '.join(what)}; {len(written.files):,} files, {written.total_bytes / 2**30:.2f} GiB."
    )


@contextmanager
def _ended_cleanly() -> Iterator[None]:
    """Turn signals that would end the process into exceptions, so that no partial file is left."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
