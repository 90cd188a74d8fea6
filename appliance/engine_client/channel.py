"""The two sockets between the front door and a core: `<folder>/to-core` and `<folder>/from-core`, both bound here."""

from __future__ import annotations

import asyncio
import shutil

import zmq

from appliance.core_protocol import FromCore, ToCore, decode_from_core, encode
from appliance.engine_process.errors import NotListeningError
from appliance.engine_process.socket_folder import make_socket_folder

LISTENING_AGAIN_S = 0.005
READABLE = int(zmq.POLLIN)


class CoreGoneError(NotListeningError):
    """There is no core to send to."""


class CoreChannel:
    def __init__(self) -> None:
        self.folder = make_socket_folder("ingot-core-")
        self._context = zmq.Context()
        self._to_core = self._context.socket(zmq.PUSH)
        self._to_core.sndhwm = 0  # what is in flight is limited by the number of requests, not here
        self._to_core.linger = 0
        self._to_core.bind(f"ipc://{self.folder}/to-core")
        self._from_core = self._context.socket(zmq.PULL)
        self._from_core.bind(f"ipc://{self.folder}/from-core")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._came: asyncio.Future[None] | None = None

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
        """The next message; one reader at a time, always of the same event loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._from_core.fileno(), self._on_signal)
        while not self._has_message():
            self._came = self._loop.create_future()
            await self._came
        return decode_from_core(self._from_core.recv(zmq.NOBLOCK))

    def _has_message(self) -> bool:
        """To ask takes back the signal, and there is none for messages that are there: ask before each wait."""
        return bool(int(self._from_core.get(zmq.EVENTS)) & READABLE)

    def _on_signal(self) -> None:
        """There may be a message: ZeroMQ also signals what is its own business."""
        if self._has_message() and self._came is not None and not self._came.done():
            self._came.set_result(None)

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._from_core.fileno())
        self._to_core.close(linger=100)
        self._from_core.close(linger=0)
        self._context.term()
        shutil.rmtree(self.folder, ignore_errors=True)
