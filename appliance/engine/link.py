"""The core's end of its two sockets. The front door binds them; see `appliance.core_protocol` for the messages."""

from __future__ import annotations

from pathlib import Path

import zmq

from appliance.core_protocol import FromCore, ToCore, decode_to_core, encode

LINGER_MS = 1000  # how long a dying core waits until its last messages are sent


class CoreLink:
    """`<folder>/to-core` is read and `<folder>/from-core` written. A socket belongs to the thread that made it."""

    def __init__(self, folder: Path) -> None:
        self._context = zmq.Context()
        self.folder = folder
        self._incoming = self._context.socket(zmq.PULL)
        self._incoming.connect(f"ipc://{folder}/to-core")
        self._outgoing = self._connect_outgoing()

    def send(self, message: FromCore) -> None:
        """Waits if the front door does not keep up."""
        self._outgoing.send(encode(message))

    def receive(self, timeout_s: float) -> ToCore | None:
        """The next message, after waiting at most `timeout_s` for it; None if there is none."""
        if not self._incoming.poll(int(timeout_s * 1000)):
            return None
        return decode_to_core(self._incoming.recv())

    def second_sender(self) -> zmq.Socket[bytes]:
        """A sender for another thread, which closes it before the link is closed; it never blocks: its user drops what
        does not fit."""
        return self._connect_outgoing()

    def last_words(self, message: FromCore) -> None:
        """From any thread, of a process that is about to end: returns once the message is on its way."""
        context = zmq.Context()
        with context.socket(zmq.PUSH) as socket:
            socket.linger = LINGER_MS
            socket.connect(f"ipc://{self.folder}/from-core")
            socket.send(encode(message))
        context.term()

    def close(self) -> None:
        self._context.destroy(linger=LINGER_MS)

    def _connect_outgoing(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.PUSH)
        socket.linger = LINGER_MS
        socket.connect(f"ipc://{self.folder}/from-core")
        return socket
