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
        what += [f"model {model.name}" for model in outline.models]
        size = f"{held.total_bytes / 2**30:.2f} GiB"
        click.echo(f"{path} is intact: {', '.join(what)}; {len(held.files):,} files, {size}.")
        click.echo(f"Signed by key {outline.signed_by}." if outline.trusted else f"Warning: {warning}.")
    if not outline.trusted:
        raise SystemExit(3)


@bundle.command()
@click.argument("path", type=PATH)
@click.option("--model", "names", multiple=True, metavar="NAME", help="One of the bundle's models.  [default: all]")
@click.option("--public-key", metavar="KEY", help="The signer's key or its file.  [default: the keys trusted here]")
@click.option("--allow-untrusted", is_flag=True, help="Install it even if it is unsigned or its signer is not trusted.")
@click.option("--json", "as_json", is_flag=True, help="Print the models' folders as JSON.")
def install(path: Path, names: tuple[str, ...], public_key: str | None, allow_untrusted: bool, as_json: bool) -> None:
    """Copy a bundle's models into the models folder, each completely or not at all."""
    from appliance.bundle.install import install_models
    from appliance.bundle.progress import shown

    home = Home.from_environment().create()
    with told(as_json), shown(as_json) as report:
        folders = install_models(
            path,
            home.models,
            _trusted(public_key),
            names or None,
            lambda *at: report(f"installing {path.name}", *at),
            allow_untrusted=allow_untrusted,
        )
    if as_json:
        click.echo(msgspec.json.encode([{"model": folder.name, "folder": str(folder)} for folder in folders]))
        return
    for folder in folders:
        click.echo(f"{folder.name} is in {folder}. Create a profile for it on the Models page.")


def _trusted(public_key: str | None) -> tuple[PublicKey, ...]:
    from appliance.bundle.signature import PublicKey
    from appliance.bundle.trust import trusted_keys

    return (PublicKey.read(public_key),) if public_key else trusted_keys(Home.from_environment())
