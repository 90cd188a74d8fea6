"""Requests in flight to vLLM, as they are counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from appliance.engine_process.errors import EngineGoneError
from appliance.vllm import client as client_module
from appliance.vllm.client import VllmClient
from appliance.vllm.http import Answer, UpstreamGoneError


async def test_a_request_that_vllm_has_just_taken_keeps_the_client_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain that waits for the last request does not end this one."""
    taken = asyncio.Event()

    async def ask(*_: Any) -> Answer:
        await taken.wait()
        return Answer()

    monkeypatch.setattr(client_module, "ask", ask)
    client = VllmClient(Path("socket"))
    asking = asyncio.create_task(client.ask("GET", b"/", (), None))
    await asyncio.sleep(0)
    draining = asyncio.create_task(client.idle())
    await asyncio.sleep(0)
    taken.set()
    answer = await asking
    await asyncio.sleep(0)
    assert (client.in_flight, draining.done()) == (1, False)
    client.release(answer)
    await asyncio.wait_for(draining, 5)
    assert client.in_flight == 0


async def test_a_request_that_vllm_did_not_take_is_no_longer_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: Any) -> Answer:
        raise UpstreamGoneError("cannot connect")

    monkeypatch.setattr(client_module, "ask", ask)
    client = VllmClient(Path("socket"))
    client.fail("the engine ended")
    with pytest.raises(EngineGoneError, match="the engine ended"):
        await client.ask("GET", b"/", (), None)
    await asyncio.wait_for(client.idle(), 5)
