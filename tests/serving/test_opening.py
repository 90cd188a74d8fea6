"""The front door while its routes are still imported and built."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import httpx
import pytest

from appliance.home import Home
from appliance.serving.head import with_head
from appliance.serving.opening import Opening
from appliance.serving.request_id import named
from tests.running import fetch, wait_for

WITHIN_S = 30


async def routes(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode(), "more_body": False})


def client(opening: Opening) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(with_head(named(opening)))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=WITHIN_S)


@pytest.mark.parametrize(("method", "body"), [("GET", {"state": "preflight", "reason": ""}), ("HEAD", None)])
async def test_health_is_answered_at_once(method: str, body: Any) -> None:
    async with client(Opening()) as http:
        answer = await http.request(method, "/health", headers={"x-request-id": "mine"})
    assert answer.status_code == 503
    assert (answer.json() if answer.content else None) == body
    assert (answer.headers["server"], answer.headers["x-request-id"]) == ("ingot", "mine")


async def test_what_came_too_early_is_answered_once_it_can_be() -> None:
    """Whoever gives up meanwhile takes it from nobody else."""
    opening = Opening()
    async with client(opening) as http:
        early = [asyncio.create_task(http.get(path)) for path in ("/v1/models", "/appliance/state", "/health/")]
        await asyncio.sleep(0.05)
        early[0].cancel()
        await asyncio.wait({early[0]})
        assert not early[1].done()
        opening.open(routes)
        answers = await asyncio.gather(*early[1:], http.get("/health"))
    assert [(answer.status_code, answer.text) for answer in answers] == [
        (200, path) for path in ("/appliance/state", "/health/", "/health")
    ]


async def test_a_malformed_host_waits_for_the_application_that_refuses_it() -> None:
    opening = Opening()
    async with client(opening) as http:
        early = asyncio.create_task(http.get("/health", headers={"host": "a b"}))
        await asyncio.sleep(0.05)
        assert not early.done()
        opening.open(routes)
        assert (await early).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_routes_are_imported_ends_the_process_at_once(home: Home, number: signal.Signals) -> None:
    """However long that would take."""
    code = (
        "import importlib, sys, time; from appliance.serving import server\n"
        "server.import_module = lambda name: time.sleep(60)\n"
        "from appliance.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "serve", "--port", "0"]
    environment = {**os.environ, "INGOT_HOME": str(home.root)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        wait_for("the front door answers", lambda: fetch(f"{url}/health")[0] == 503)
        process.send_signal(number)
        assert process.wait(10) == -number


def test_the_server_waits_for_no_web_framework() -> None:
    code = "import appliance.serving.server, sys; sys.exit('litestar' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
