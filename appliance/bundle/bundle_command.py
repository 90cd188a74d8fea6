"""`ingot bundle`: carry the appliance or models to a machine without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from appliance.bundle.create_command import create
from appliance.bundle.key_commands import distrust, key, keys, trust
from appliance.bundle.telling import told
from appliance.home import Home
from appliance.running_appliance import find_the_appliance

if TYPE_CHECKING:
    from appliance.bundle.signature import PublicKey

PATH = click.Path(path_type=Path)


# Commands that need no state folder.
STATELESS = ("create", "key")


@click.group()
@click.pass_context
def bundle(context: click.Context) -> None:
    """Carry the appliance or models to a machine without a network, in one signed file."""
    if context.invoked_subcommand not in STATELESS:
        find_the_appliance()


for _command in (create, key, trust, keys, distrust):
    bundle.add_command(_command)


@bundle.command()
@click.argument("path", type=PATH)
@click.option("--public-key", metavar="KEY", help="The signer's key or its file.  [default: the keys trusted here]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(path: Path, public_key: str | None, as_json: bool) -> None:
    """Check a bundle's signature and all of its content.

    Exit status: 0 whole and signed by a trusted key; 1 damaged, incomplete or no bundle; 3 whole, but nobody whom this
    machine trusts has signed it.
    """
    from appliance.bundle.install import untrusted_text
    from appliance.bundle.progress import shown
    from appliance.bundle.verify import verify as verify_bundle

    with told(as_json), shown(as_json) as report:
        outline = verify_bundle(path, _trusted(public_key), lambda *at: report(f"verifying {path.name}", *at))
    held = outline.manifest
    warning = "" if outline.trusted else untrusted_text(path.name, outline)
    if as_json:
        signed = {"whole": True, "trusted": outline.trusted, "signed_by": outline.signed_by}
        click.echo(msgspec.json.encode(signed | {"manifest": held}))
    else:
        what = [f"release {held.release} for {held.machine}"] if held.images else []
        what += [f"model {model.name}" for model in outline.models] + [str(note) for note in held.packs]
        size = f"{held.total_bytes / 2**30:.2f} GiB"
        click.echo(f"{path} is intact: {', '.join(what)}; {len(held.files):,} files, {size}.")
        click.echo(f"Signed by key {outline.signed_by}." if outline.trusted else f"Warning: {warning}.")
    if not outline.trusted:
        raise SystemExit(3)


@bundle.command()
@click.argument("path", type=PATH)
@click.option("--model", "models", multiple=True, metavar="NAME", help="One of the bundle's models.  [default: all]")
@click.option("--pack", "packs", multiple=True, metavar="NAME", help="One of its cache packs.  [default: all]")
@click.option("--public-key", metavar="KEY", help="The signer's key or its file.  [default: the keys trusted here]")
@click.option("--allow-untrusted", is_flag=True, help="Install it even if it is unsigned or its signer is not trusted.")
@click.option("--json", "as_json", is_flag=True, help="Print the folders as JSON.")
def install(
    path: Path,
    models: tuple[str, ...],
    packs: tuple[str, ...],
    public_key: str | None,
    allow_untrusted: bool,
    as_json: bool,
) -> None:
    """Copy a bundle's models and cache packs to where the engine finds them, each completely or not at all.

    With --model or --pack, only those. Cache packs for other GPUs than this machine's, another driver or another vLLM
    are left out, and named.
    """
    from appliance import hardware
    from appliance.bundle.cache_packs import Installed, install_packs
    from appliance.bundle.install import install_models
    from appliance.bundle.outline import read_outline
    from appliance.bundle.progress import shown

    home = Home.from_environment().create()
    trusted = _trusted(public_key)
    with told(as_json), shown(as_json) as report:
        manifest = read_outline(path, trusted).manifest
        named = bool(models or packs)
        folders, found = [], Installed([], [])
        if models or (not named and (manifest.models or not manifest.packs)):
            folders = install_models(
                path,
                home.models,
                trusted,
                models or None,
                lambda *at: report(f"installing {path.name}", *at),
                allow_untrusted=allow_untrusted,
            )
        if packs or (not named and manifest.packs):
            found = install_packs(
                path,
                home.cache_packs,
                trusted,
                hardware.inventory(home=home),
                names=packs or None,
                report=lambda *at: report(f"installing {path.name}", *at),
                allow_untrusted=allow_untrusted,
            )
    if as_json:
        rows = [{"model": folder.name, "folder": str(folder)} for folder in folders]
        rows += [{"pack": pack.pack.name, "folder": str(pack.path)} for pack in found.packs]
        rows += [{"pack": name, "refused": reason} for name, reason in found.refused]
        click.echo(msgspec.json.encode(rows))
        return
    for folder in folders:
        click.echo(f"{folder.name} is in {folder}. Create a profile for it on the Models page.")
    for pack in found.packs:
        click.echo(
            f"The cache pack {pack.pack.name} is in {pack.path}. `ingot check` says whether a profile can use it."
        )
    for name, reason in found.refused:
        click.echo(f"The cache pack {name} is not installed: {reason}.", err=True)


def _trusted(public_key: str | None) -> tuple[PublicKey, ...]:
    from appliance.bundle.signature import PublicKey
    from appliance.bundle.trust import trusted_keys

    return (PublicKey.read(public_key),) if public_key else trusted_keys(Home.from_environment())
