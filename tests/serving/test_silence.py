"""A stream's client hears from it after each heartbeat's time without a piece, and only then."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.serving.answering import Answering
from appliance.serving.silence import HEARTBEAT_S
from tests.serving.test_slow_clients import Clock


async def test_heartbeats_come_in_silence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after pieces, and not for those that come in time."""
    clock = Clock(asyncio.get_running_loop(), monkeypatch)
    choice = SimpleNamespace(waits_for_scores=False, finished=False)
    coming: list[str] = []
    arrived = asyncio.Event()
    answering: Any = SimpleNamespace(
        choices=[choice], _arrived=arrived, _take=lambda _: coming.pop(0) if coming else None
    )
    got: list[str] = []

    async def read() -> None:
        async for came in Answering.pieces(answering):
            got.append("heartbeat" if came is None else str(came[1]))

    async def later(seconds: float) -> list[str]:
        await clock.move(seconds)
        heard = got.copy()
        got.clear()
        return heard

    def arrive(piece: str) -> None:
        coming.append(piece)
        arrived.set()

    reading = asyncio.create_task(read())
    assert await later(0) == []
    assert await later(HEARTBEAT_S - 1) == []
    assert await later(1.5) == ["heartbeat"]
    for number in range(5):
        assert await later(HEARTBEAT_S - 1) == []
        arrive(f"piece {number}")
        assert await later(0) == [f"piece {number}"]
    assert await later(HEARTBEAT_S - 1) == []
    assert await later(1.5) == ["heartbeat"]
    assert await later(HEARTBEAT_S + 1) == ["heartbeat"]
    choice.finished = True
    arrive("the last")
    assert await later(0) == ["the last"]
    await asyncio.wait_for(reading, 10)
