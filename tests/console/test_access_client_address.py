"""Where a browser is, told by the one proxy that is believed."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import httpx
import pytest
from sqlalchemy import select

from console.access.setup import make_administrator, new_code
from console.app import create_app
from console.db.models import SignIn
from tests.console.conftest import BASE_URL, BROWSER, PASSWORD


async def _signed_in_from(config, control, peer: str, *forwarded: str) -> str:
    """The address that the list of browsers has, of a sign-in that came from `peer`."""
    app = create_app(config, control, follow=False)
    console = app.state.console
    async with console.database.session() as session:
        await make_administrator(session, "admin", PASSWORD, code=await new_code(session))

    transport = httpx.ASGITransport(cast(Any, app), client=(peer, 5000))
    headers = [*BROWSER.items(), *(("X-Forwarded-For", one) for one in forwarded)]
    async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as browser:
        answer = await browser.post("/sign-in", data={"name": "admin", "password": PASSWORD}, headers=headers)
    assert answer.status_code == 303, answer.text
    async with console.database.session() as session:
        return (await session.scalars(select(SignIn))).one().address


@pytest.mark.parametrize(
    ("proxy", "peer", "forwarded", "address"),
    [
        ("localhost", "127.0.0.1", ["10.0.0.7"], "10.0.0.7"),
        ("localhost", "127.0.0.1", ["6.6.6.6, 10.0.0.7"], "10.0.0.7"),  # the last word is the proxy's own
        ("localhost", "127.0.0.1", [], "127.0.0.1"),
        ("localhost", "10.0.0.9", ["6.6.6.6"], "10.0.0.9"),
        ("", "127.0.0.1", ["6.6.6.6"], "127.0.0.1"),
        ("no-such-host.invalid", "127.0.0.1", ["6.6.6.6"], "127.0.0.1"),
    ],
)
async def test_only_our_proxy_is_believed(config, control, proxy, peer, forwarded, address):
    """Anybody can send the header; it counts from the address of the proxy that the settings name."""
    config = dataclasses.replace(config, proxy=proxy)
    assert await _signed_in_from(config, control, peer, *forwarded) == address
