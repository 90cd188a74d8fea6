"""`ingot bundle`: carry a model to a machine without a network."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from appliance.bundle.manifest import BundleError, Manifest
from appliance.checkpoint.errors import CheckpointError
from appliance.home import Home

PATH = click.Path(path_type=Path)


@click.group()
def bundle() -> None:
    """Carry a model to a machine without a network, as one file with a checksum for everything in it."""


@bundle.command()
@click.option("--model", "folder", type=PATH, required=True, help="The model's folder.")
@click.option("--out", type=PATH, required=True, help="The bundle to write.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def create(folder: Path, out: Path, as_json: bool) -> None:
    """Write a model folder to a bundle."""
    from appliance.bundle import pack

    with _told(), _progress(f"Packing {folder.name}", as_json) as report:
        manifest = pack.create(folder.absolute(), out, report)
    _print(manifest, f"{out} holds {manifest.name}: {len(manifest.files)} files, {_gib(manifest)}.", as_json)


@bundle.command()
@click.argument("path", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def verify(path: Path, as_json: bool) -> None:
    """Check every file of a bundle against its checksum."""
    from appliance.bundle import install as installing

    with _told(), _progress(f"Verifying {path.name}", as_json) as report:
        manifest = installing.verify(path, report)
    _print(manifest, f"{path} is whole: {manifest.name}, {len(manifest.files)} files, {_gib(manifest)}.", as_json)


@bundle.command()
@click.argument("path", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print where the model lies as JSON.")
def install(path: Path, as_json: bool) -> None:
    """Copy a bundle's model into the models folder, as a whole or not at all."""
    from appliance.bundle import install as installing

    home = Home.from_environment().create()
    with _told(), _progress(f"Installing {path.name}", as_json) as report:
        target = installing.install(path, home.models, report)
    if as_json:
        click.echo(msgspec.json.encode({"model": target.name, "folder": str(target)}))
    else:
        click.echo(f"{target.name} is in {target}. Make a profile for it on the Models page.")


@contextmanager
def _told() -> Iterator[None]:
    """Turn what can go wrong into one line and exit status 1."""
    try:
        yield
    except (BundleError, CheckpointError, OSError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _progress(title: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (title, BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _print(manifest: Manifest, sentence: str, as_json: bool) -> None:
    click.echo(msgspec.json.encode(manifest) if as_json else sentence)


def _gib(manifest: Manifest) -> str:
    return f"{manifest.total_bytes / 2**30:.2f} GiB"
