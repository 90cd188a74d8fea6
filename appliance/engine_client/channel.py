"""The two sockets between the front door and a core: `<folder>/to-core` and `<folder>/from-core`, both bound here."""

from __future__ import annotations

import asyncio
import shutil

import zmq
import zmq.asyncio

from appliance.core_protocol import FromCore, ToCore, decode_from_core, encode
from appliance.engine_process.errors import NotListeningError
from appliance.engine_process.socket_folder import make_socket_folder

LISTENING_AGAIN_S = 0.005


class CoreGoneError(NotListeningError):
    """There is no core to send to."""


class CoreChannel:
    def __init__(self) -> None:
        self.folder = make_socket_folder("ingot-core-")
        self._context = zmq.asyncio.Context()
        self._to_core = zmq.Context(self._context).socket(zmq.PUSH)
        self._to_core.sndhwm = 0  # what is in flight is limited by the number of requests, not here
        self._to_core.linger = 0
        self._to_core.bind(f"ipc://{self.folder}/to-core")
        self._from_core = self._context.socket(zmq.PULL)
        self._from_core.bind(f"ipc://{self.folder}/from-core")

    async def listening(self) -> None:
        """Wait until the core can be sent to. Its first message may arrive earlier, as its two connections are
        independent."""
        while not self._to_core.poll(0, zmq.POLLOUT):  # noqa: ASYNC110  ZeroMQ tells nobody of a connection
            await asyncio.sleep(LISTENING_AGAIN_S)

    def send(self, message: ToCore) -> None:
        try:
            self._to_core.send(encode(message), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise CoreGoneError("the core is not connected") from error

    async def receive(self) -> FromCore:
        return decode_from_core(await self._from_core.recv())

    def close(self) -> None:
        self._to_core.close(linger=100)
        self._from_core.close(linger=0)
        self._context.term()
        shutil.rmtree(self.folder, ignore_errors=True)
