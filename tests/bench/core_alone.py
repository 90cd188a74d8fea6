"""The scripted core without a front door: asked over its own channel, by the client that the front door has, and with
nothing else. What a first token takes here is the core's and the channel's."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Self

from appliance.core_protocol import FromCore, Hello, Loaded, SamplingParams, Shutdown
from appliance.engine_client.client import CoreClient
from appliance.engine_client.core import NativeCore
from appliance.home import Home
from tests.configured import engine_config

ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


class CoreAlone:
    """To be used as a context manager, outside any event loop: it has one of its own, which stands still between two
    questions."""

    def __init__(self, home: Home, command: Sequence[str]) -> None:
        self._home = home
        self._command = command
        self._runner = asyncio.Runner()

    def first_token_ms(self, prompt_token_ids: list[int], questions: int) -> float:
        """The median of so many, one after the other."""
        return statistics.median(self._runner.run(self._ask(prompt_token_ids, questions))) * 1e3

    async def _ask(self, prompt_token_ids: list[int], questions: int) -> list[float]:
        client = CoreClient(self._core.channel)
        receiving = asyncio.create_task(client.receive(_Nobody()))
        took = []
        for _ in range(questions):
            asked = time.perf_counter()
            generation = client.start(prompt_token_ids, ONE_TOKEN)
            await generation.read()
            took.append(time.perf_counter() - asked)
            client.release(generation)
        receiving.cancel()
        return took

    async def _start(self) -> None:
        self._core = NativeCore(self._command)
        channel = self._core.channel
        while not isinstance(await channel.receive(), Hello):
            continue
        await channel.listening()
        channel.send(engine_config(self._home.models / "tiny"))
        while not isinstance(await channel.receive(), Loaded):
            continue

    async def _end(self) -> None:
        self._core.channel.send(Shutdown())
        await self._core.child.wait()
        self._core.channel.close()

    def __enter__(self) -> Self:
        self._runner.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._end())
        self._runner.close()


class _Nobody:
    """Watches no core."""

    def generated(self) -> None:
        pass

    def told(self, message: FromCore) -> None:
        pass
