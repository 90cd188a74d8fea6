"""`ingot bundle key`, `trust`, `keys` and `distrust`: signing keys, and the keys that a site trusts."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from appliance.bundle.telling import told
from appliance.home import Home

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("name", type=PATH)
@click.option("--password-file", type=PATH, help="A file whose first line is the password.  [default: ask]")
@click.option("--no-password", is_flag=True, help="Do not encrypt the key: anyone who can read the file can sign.")
def key(name: Path, password_file: Path | None, no_password: bool) -> None:
    """Create a key pair: NAME.key signs, NAME.pub goes to the sites. The `minisign` program can use both."""
    from appliance.bundle.errors import BundleError
    from appliance.bundle.password import asker
    from appliance.bundle.signature import Key

    secret, public = name.with_name(f"{name.name}.key"), name.with_name(f"{name.name}.pub")
    with told():
        if no_password and password_file is not None:
            raise BundleError("usage", "--no-password and --password-file exclude each other; choose one")
        for path in (secret, public):
            if os.path.lexists(path):
                raise BundleError(
                    "file-exists", f"{path} already exists; choose another name, since a lost key cannot be recreated"
                )
        password = "" if no_password else asker(str(secret), password_file, confirm=True)()
        made = Key.generate()
        _write_new(public, str(made.public).encode(), 0o644)
        _write_new(secret, made.encode(password), 0o600)
    click.echo(f"{secret} is the signing key: keep it secret. {public} (key {made.public.id}) is for the sites:")
    click.echo(made.public.text)


@click.command()
@click.argument("public_key", metavar="KEY")
def trust(public_key: str) -> None:
    """Trust bundles signed by KEY (a .pub file, or the key itself) on this machine."""
    from appliance.bundle import trust as trusting
    from appliance.bundle.signature import PublicKey

    home = Home.from_environment().create()
    with told():
        taken = PublicKey.read(public_key)
        trusting.trust(home, taken)
    click.echo(f"Bundles signed by key {taken.id} are now trusted here.")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the keys as JSON.")
def keys(as_json: bool) -> None:
    """List the keys that this machine trusts."""
    from appliance.bundle.trust import trusted_keys

    with told(as_json):
        known = trusted_keys(Home.from_environment())
    if as_json:
        click.echo(msgspec.json.encode([{"id": one.id, "key": one.text} for one in known]))
        return
    for one in known:
        click.echo(f"{one.id}  {one.text}")
    if not known:
        click.echo("No key is trusted here. `ingot bundle trust KEY` adds one.", err=True)


@click.command()
@click.argument("key_id", metavar="ID")
def distrust(key_id: str) -> None:
    """Stop trusting bundles signed by the key with that ID."""
    from appliance.bundle import trust as trusting

    with told():
        trusting.distrust(Home.from_environment(), key_id)
    click.echo(f"Bundles signed by key {key_id.upper()} are no longer trusted here.")


def _write_new(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
