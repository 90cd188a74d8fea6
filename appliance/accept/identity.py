"""Whether the server is what the profile and the oracles speak of, and what a report says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from appliance import __version__
from appliance.accept.appliance_site import OfProfile, recorded_settings
from appliance.accept.oracle_checks import is_identified, misfit
from appliance.accept.oracle_file import OracleFile
from appliance.accept.report import Book
from appliance.accept.site import Site
from appliance.bench.answers import RequestFailedError
from appliance.bench.server import ServerError

READY: Final = "ready"
MOST_NAMED: Final = 3


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What `/appliance/state` tells of the launch."""

    launch: str = ""
    profile: str = ""
    revision: str = ""
    engine: str = ""
    version: str = ""
    sealed: bool | None = None


async def running(site: Site) -> Running | None:
    """None where the server is no Ingot, or this key may not see its state. Raises ServerError if it is not ready."""
    told = await site.state()
    if told is None or "state" not in told:
        return None
    if told["state"] != READY:
        raise ServerError(f"{site.url} is not ready: its state is {told['state']}. Wait until it is, or start it.")
    launch = told.get("launch") or {}
    return Running(
        launch=str(launch.get("id", "")),
        profile=str(launch.get("profile", "")),
        revision=str(launch.get("revision", "")),
        engine=str(launch.get("engine", "native")),
        version=str(told.get("version", "")),
        sealed=told.get("sealed"),
    )


async def engine_of(site: Site, launch: Running | None) -> tuple[str, str]:
    """Its name and version, "" for what is not told."""
    if launch is not None:
        return f"Ingot, {launch.engine}", launch.version
    told = await site.version()
    return site.owner or "unknown", told


async def identify(
    site: Site, launch: Running | None, profile: OfProfile | None, oracles: Sequence[OracleFile], book: Book
) -> None:
    """Raises ServerError for what is another than was asked for: nothing would be accepted by asking it more."""
    _profile(site, launch, profile, book)
    _digest(site, profile, book)
    if not oracles:
        return
    for file in oracles:
        try:
            wrong = await misfit(file.oracle, site)
        except RequestFailedError as error:
            raise ServerError(f"{site.url} does not tokenise: {error.kind}: {error}") from None
        if wrong is not None:
            raise ServerError(
                f"--oracle {file.path} does not fit: {wrong}. Name an oracle of the model that is served."
            )
    if all(is_identified(file.oracle, site) for file in oracles):
        book.counted("identity.oracle", [], of=len(oracles), what="oracles", detail="by digest and tokenizer")
    elif site.can("tokenize") and all(file.oracle.model.tokenizer_ids for file in oracles):
        reason = "the server or the oracle does not tell the model's digest; its tokenizer is the same"
        book.not_run("identity.oracle", reason)
    else:
        book.not_run("identity.oracle", "neither digest nor tokenizer can be compared")


def _profile(site: Site, launch: Running | None, profile: OfProfile | None, book: Book) -> None:
    if profile is None:
        book.not_run("identity.profile", "no profile was named: give --profile")
        return
    if launch is None:
        book.not_run("identity.profile", "the server has no /appliance/state, or this key may not see it")
        return
    if launch.profile != profile.name:
        raise ServerError(
            f"{site.url} runs the profile {launch.profile!r}, and not {profile.name!r}: activate that one, or name the "
            "running one with --profile."
        )
    changes = recorded_settings(profile, launch.launch)
    if changes is None:
        if profile.revision and launch.revision and profile.revision != launch.revision:
            raise ServerError(
                f"{site.url} runs the revision {launch.revision} of {profile.name}, and {profile.revision} is active: "
                "restart the engine."
            )
        if not (profile.revision and launch.revision):
            book.not_run("identity.profile", "what the launch runs cannot be read: its state folder is elsewhere")
            return
    elif changes:
        named = "; ".join(f"{each.key} is {each.before} instead of {each.after}" for each in changes[:MOST_NAMED])
        raise ServerError(
            f"{site.url} runs another revision of {profile.name}: {named}. Restart the engine with this one, or name "
            "the running one with --profile."
        )
    revision = launch.revision or "without a revision"
    book.measured("identity.profile", 0, 0, detail=f"{profile.name}, {revision}")


def _digest(site: Site, profile: OfProfile | None, book: Book) -> None:
    if profile is None or profile.digest is None:
        reason = "no profile was named: give --profile" if profile is None else profile.why_no_digest
        book.not_run("identity.digest", reason)
    elif site.digest is None:
        book.not_run("identity.digest", "the server does not tell the digest of its model")
    elif site.digest != profile.digest:
        raise ServerError(
            f"{site.url} serves another model than the profile's folder holds: {site.digest} instead of "
            f"{profile.digest}. Restart the engine, or restore the folder."
        )
    else:
        book.measured("identity.digest", 0, 0, detail=site.digest)


async def environment(
    site: Site, launch: Running | None, profile: OfProfile | None, here: dict[str, Any] | None
) -> list[tuple[str, str]]:
    """As (name, value), as far as it is told. `here` is this machine, where the server runs on it."""
    name, version = await engine_of(site, launch)
    machine = await site.hardware() or here or {}
    inventory = machine.get("inventory") or {}
    host = inventory.get("host") or {}
    rows: list[tuple[str, Any]] = [
        ("Engine", f"{name} {version}".strip()),
        ("Profile", launch.profile if launch else profile.name if profile else None),
        ("Revision", launch.revision if launch else None),
        ("Launch", launch.launch if launch else None),
        ("Sealed", None if launch is None or launch.sealed is None else "yes" if launch.sealed else "no"),
        ("Model digest", site.digest),
        ("dtype", site.dtype),
        ("Device", site.device),
        ("Context", f"{site.max_model_len:,} tokens" if site.tells_context else None),
        ("GPUs", ", ".join(str(gpu.get("name")) for gpu in inventory.get("gpus") or [])),
        ("Driver", inventory.get("driver_version")),
        ("Processor", host.get("processor")),
        ("System", host.get("system")),
        ("Libraries", ", ".join(f"{key} {value}" for key, value in sorted((machine.get("libraries") or {}).items()))),
        ("Backends", ", ".join(f"{op}: {backend}" for op, backend in (profile.selection if profile else {}).items())),
        ("Accepted by", f"ingot accept {__version__}"),
    ]
    return [(title, str(value)) for title, value in rows if value]
