"""Between the front door and a core: what is asked, what comes back, and who is told of which."""

from __future__ import annotations

import asyncio

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from appliance.core_protocol import (
    AboutCore,
    CoreBeat,
    FromCore,
    Hello,
    Outputs,
    SamplingParams,
    Shutdown,
    TokenOutput,
    decode_to_core,
    encode,
)
from appliance.engine_client.channel import CoreChannel, CoreGoneError
from appliance.engine_client.client import CoreClient, merge
from appliance.engine_process.errors import EngineGoneError
from appliance.protocol import Load


class Wire:
    """A channel whose other end is a test."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.coming: asyncio.Queue[FromCore] = asyncio.Queue()

    async def receive(self) -> FromCore:
        return await self.coming.get()

    def send(self, message: object) -> None:
        self.sent.append(message)


async def test_released_generations_are_aborted_once_and_only_if_unfinished() -> None:
    """A client that goes away frees its slot; one that has all it asked for needs no abort."""
    wire = Wire()
    client = CoreClient(wire)
    first = client.start([1], SamplingParams())
    second = client.start([1], SamplingParams())
    second.finished = True
    for generation in (first, first, second):
        client.release(generation)
    assert [type(message).__name__ for message in wire.sent] == ["Submit", "Submit", "Abort"]
    assert client.in_flight == 0
    client.fail("over")
    with pytest.raises(EngineGoneError, match="over"):
        client.start([1], SamplingParams())


class Owner:
    """What a supervisor would hear."""

    def __init__(self) -> None:
        self.steps = 0
        self.heard: list[AboutCore] = []

    def generated(self) -> None:
        self.steps += 1

    def told(self, message: AboutCore) -> None:
        self.heard.append(message)


async def test_tokens_go_to_who_asked_and_the_owner_hears_only_of_the_core() -> None:
    """The supervisor learns that tokens come, not which."""
    wire, owner = Wire(), Owner()
    client = CoreClient(wire)
    generation = client.start([1], SamplingParams())
    receiving = asyncio.create_task(client.receive(owner))
    beat = CoreBeat(where="step", busy_s=0.0, load=Load())
    for message in (
        Hello(pid=1, python="scripted"),
        Outputs([TokenOutput(request_id="released meanwhile", token_ids=(8,))]),
        beat,
        Outputs([TokenOutput(request_id=generation.request_id, token_ids=(7,))]),
    ):
        wire.coming.put_nowait(message)
    assert (await asyncio.wait_for(generation.read(), 5)).token_ids == (7,)
    assert owner.steps == 2
    assert owner.heard == [Hello(pid=1, python="scripted"), beat]
    receiving.cancel()


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=6))
def test_merged_outputs_lose_no_token(steps: list[list[int]]) -> None:
    """What piled up while the reader was busy is one output with everything in order."""
    merged = merge([TokenOutput(request_id="a", token_ids=tuple(step)) for step in steps])
    assert list(merged.token_ids) == [token for step in steps for token in step]


async def test_a_core_that_has_spoken_is_sent_to_only_when_it_listens() -> None:
    """It makes two connections, and the one for speaking may be there first."""
    channel = CoreChannel()
    with zmq.Context() as context, context.socket(zmq.PUSH) as speaks, context.socket(zmq.PULL) as listens:
        speaks.connect(f"ipc://{channel.folder}/from-core")
        speaks.send(encode(Hello(pid=1, python="scripted")))
        assert isinstance(await channel.receive(), Hello)
        with pytest.raises(CoreGoneError):
            channel.send(Shutdown())
        waiting = asyncio.create_task(channel.listening())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        listens.connect(f"ipc://{channel.folder}/to-core")
        await asyncio.wait_for(waiting, 30)
        channel.send(Shutdown())
        assert decode_to_core(await asyncio.to_thread(listens.recv)) == Shutdown()
        channel.close()


async def test_every_message_is_received_however_the_signals_fall() -> None:
    """ZeroMQ signals once for any number of messages, and a reader may give up in between."""
    channel = CoreChannel()
    with zmq.Context() as context, context.socket(zmq.PUSH) as core:
        core.connect(f"ipc://{channel.folder}/from-core")

        def say(*pids: int) -> None:
            for pid in pids:
                core.send(encode(Hello(pid=pid, python="scripted")))

        async def heard(count: int) -> list[int]:
            found = [await asyncio.wait_for(channel.receive(), 30) for _ in range(count)]
            return [message.pid for message in found if isinstance(message, Hello)]

        say(1, 2, 3)
        assert await heard(2) == [1, 2]
        await asyncio.sleep(0.05)  # the signal of the third is taken back, and nobody waits
        assert await heard(1) == [3]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.receive(), 0.05)
        say(4)
        await asyncio.sleep(0.05)
        say(5, 6)
        assert await heard(3) == [4, 5, 6]
        waiting = asyncio.create_task(heard(1))
        await asyncio.sleep(0)
        say(7)
        assert await waiting == [7]
        channel.close()
