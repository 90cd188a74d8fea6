"""Which server a command asks: the one at an address, or the running one of a state folder, with its profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from appliance.accept.appliance_site import OfProfile, read_profile
from appliance.accept.identity import engine_of, identify, running
from appliance.accept.needle import check_lengths
from appliance.accept.oracle_file import Oracle
from appliance.accept.progress import Progress
from appliance.accept.recording import record, usual_texts
from appliance.accept.report import Book
from appliance.accept.site import Site
from appliance.bench.server import ServerError
from appliance.bench.target import read_url
from appliance.home import Home
from appliance.profile.chosen import NoSuchProfileError
from appliance.profile.schema import ProfileError
from appliance.selftest.replay import key_for, own_urls


class Asked(NamedTuple):
    """`is_own`: the server is that of the state folder `home`, on this machine."""

    site: Site
    profile: OfProfile | None
    home: Home
    is_own: bool

    async def record(
        self, texts: Mapping[str, str] | None, *, tokens: int, top: int, lengths: Sequence[int],
        depths: Sequence[float], seed: int, dtype: str | None,
    ) -> Oracle:  # fmt: skip
        """Raises ServerError."""
        site, progress, made = self.site, Progress(), []

        async def work() -> None:
            progress.tell("identity: what is served")
            await site.look()
            launch = await running(site)
            await identify(site, launch, self.profile, (), Book())
            known = dtype or site.dtype
            if known is None:
                raise ServerError(f"{site.url} does not tell what it computes in: give --dtype.")
            await check_lengths(site, lengths if depths else ())
            made.append(
                await record(
                    site, progress, texts=texts or usual_texts(site), tokens=tokens, top=top, lengths=lengths,
                    depths=depths, seed=seed, revision=launch.revision if launch else "",
                    digest=site.digest or (self.profile.digest if self.profile else None) or "", dtype=known,
                    engine=await engine_of(site, launch),
                )
            )  # fmt: skip

        try:
            await progress.shown_while(work())
        finally:
            site.close()
        return made[0]


def find_server(*, url: str | None, source: str | None, model: str | None, given_key: str, timeout_s: float) -> Asked:
    """Without `url`, the server of the state folder, and its active profile unless `source` names another. Raises
    click.UsageError."""
    home = Home.from_environment()
    own = own_urls(home)
    if url is None and not own:
        raise click.UsageError(
            f"No engine runs with the state folder {home.root}. Start it, or name a running server with --url."
        )
    address = url or own[-1]
    is_own = address.rstrip("/") in own
    try:
        profile = read_profile(source, home) if source is not None or url is None else None
    except (NoSuchProfileError, ProfileError) as error:
        raise click.UsageError(f"--profile: {error}") from None
    try:
        target = read_url(address, given_key or key_for(address, home) or "")
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="'--url'") from None
    wanted = model or (profile.served_model_name if profile is not None else None)
    return Asked(Site(target, wanted, timeout_s), profile, home, is_own)
