"""`ingot cache`: make packs of what vLLM compiled, and look after them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from appliance.home import Home

if TYPE_CHECKING:
    from appliance.bundle.signature import Key
    from appliance.vllm.cache_packs.pack import PackFolder

PATH = click.Path(path_type=Path)


@click.group()
def cache() -> None:
    """Packs of what vLLM compiled: made after a good launch, used from the first start elsewhere."""


@cache.command()
@click.option("--profile", "source", metavar="FILE", help="The profile that was launched. [default: the active one]")
@click.option("--sign", type=PATH, metavar="KEY", help="The secret key to sign with; see `ingot bundle key`.")
@click.option("--password-file", type=PATH, help="A file whose first line is the key's password.  [default: ask]")
@click.option("--out", type=PATH, metavar="DIR", help="The pack's folder.  [default: in the state folder]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pack(source: str | None, sign: Path | None, password_file: Path | None, out: Path | None, as_json: bool) -> None:
    """Make a pack of the code that vLLM compiled for a profile, which must have become ready."""
    from appliance.caches.collect import make_pack
    from appliance.caches.launched import last_launch

    if password_file is not None and sign is None:
        raise click.UsageError("--password-file is for the key that --sign names: give that too.")
    home = Home.from_environment().create()
    with _told(as_json):
        launched = last_launch(source, home)
        key = _key(sign, password_file) if sign else None
        folder = out.absolute() if out else home.cache_packs / launched.default_name
        made = make_pack(
            launched.caches, folder, profile=launched.profile, cold_s=launched.cold_s, facts=launched.facts, key=key
        )
    if as_json:
        click.echo(
            msgspec.json.encode({"path": str(made.path), "files": len(made.pack.files), "bytes": made.pack.bytes})
        )
        return
    click.echo(f"{made.path} holds {_size(made)} of {launched.profile}" + ("." if key else ", unsigned."))
    if not key:
        click.echo("Other machines take it only with --allow-untrusted; --sign KEY signs it.", err=True)


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_packs(as_json: bool) -> None:
    """List the packs of this machine."""
    from appliance.bundle.telling import in_sentences
    from appliance.vllm.cache_packs.pack import PackError
    from appliance.vllm.cache_packs.store import folders, packs

    found = list(packs(folders(Home.from_environment())))
    good = [one for one in found if not isinstance(one, PackError)]
    bad = [one for one in found if isinstance(one, PackError)]
    if as_json:
        rows = [
            {"name": one.pack.name, "path": str(one.path), "profile": one.pack.profile, "created": one.pack.created,
             "files": len(one.pack.files), "bytes": one.pack.bytes, "facts": one.pack.facts}
            for one in good
        ]  # fmt: skip
        click.echo(msgspec.json.encode({"packs": rows, "unreadable": [str(error) for error in bad]}))
        return
    for one in good:
        facts = one.pack.facts
        what = f"vLLM {facts.versions.get('vllm', '?')}, {facts.processor.partition(' (')[0]}"
        click.echo(f"{one.pack.name}  {_size(one)}, {what}")
    for error in bad:
        click.echo(f"Error: {in_sentences(str(error))}", err=True)
    if not found:
        click.echo("There are no cache packs here. `ingot cache pack` makes one.", err=True)


@cache.command()
@click.argument("path", type=PATH, metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(path: Path, as_json: bool) -> None:
    """Check every file of a pack and its signature.

    Exits with 3 if the pack is whole but nobody trusted here has signed it.
    """
    from appliance.bundle.cache_packs import signed_by
    from appliance.bundle.trust import trusted_keys
    from appliance.vllm.cache_packs.pack import verify as verify_pack

    with _told(as_json):
        key, is_trusted = signed_by(path, trusted_keys(Home.from_environment()))
        found = verify_pack(path)
    if as_json:
        click.echo(msgspec.json.encode({"whole": True, "signed_by": key, "trusted": is_trusted}))
    else:
        who = "nobody" if key is None else f"key {key}" + ("" if is_trusted else ", which is not trusted here")
        click.echo(f"{found.pack.name} is whole: {_size(found)}, signed by {who}.")
    raise SystemExit(0 if is_trusted else 3)


@cache.command()
@click.argument("path", type=PATH, metavar="DIR")
@click.option("--allow-untrusted", is_flag=True, help="Take a pack that nobody trusted here has signed.")
def add(path: Path, allow_untrusted: bool) -> None:
    """Copy a pack to this machine's, so that launches use it where it fits."""
    from appliance.bundle.trust import trusted_keys
    from appliance.caches.carry import add as add_pack

    home = Home.from_environment().create()
    with _told(False):
        added = add_pack(path, home.cache_packs, trusted_keys(home), allow_untrusted=allow_untrusted)
    click.echo(f"Added {added.pack.name}: {_size(added)}. `ingot check` says whether a profile can use it.")


def _key(path: Path, password_file: Path | None) -> Key:
    from appliance.bundle.password import asker
    from appliance.bundle.signature import Key

    return Key.read(path, asker(str(path), password_file))


def _size(folder: PackFolder) -> str:
    from appliance.profile.sizes import size_text

    return f"{folder.pack.counted}, {size_text(folder.pack.bytes)}"


@contextmanager
def _told(as_json: bool) -> Iterator[None]:
    """As for bundles: one line of whole sentences; exit status 1, or 3 if only the trust is missing."""
    from appliance.bundle.errors import BundleError
    from appliance.bundle.telling import told
    from appliance.vllm.cache_packs.pack import PackError

    with told(as_json):
        try:
            yield
        except PackError as error:
            raise BundleError(error.code, str(error)) from error
