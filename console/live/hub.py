"""What is sent to open pages: topics that anything in the console may publish to, and feeds that a page asks for by
name and continues where it left off.

A page keeps one stream for all its topics. A *topic* (`strip`, `load`) has a present value: a page that opens, or
comes back from sleep, gets the value as it is now and then each new one. A *feed* (`log:20261120-095145-3f2a`) is a
sequence: the page says the position of the last item that it has, and gets what came after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import NamedTuple

log = logging.getLogger(__name__)

QUEUE_LIMIT = 256


class Message(NamedTuple):
    """`data` is HTML or JSON, as the topic has it; `position` is where a feed would continue."""

    topic: str
    data: str
    position: str = ""


_END = Message("", "")

Feed = Callable[[str, str], AsyncIterator[Message]]
"""A feed's (argument, position of the last item seen or "") -> messages, until the page goes away."""


class Hub:
    """Values of topics, and the queues of the pages that listen."""

    def __init__(self) -> None:
        self._values: dict[str, Message] = {}
        self._listeners: dict[asyncio.Queue[Message], frozenset[str]] = {}
        self._feeds: dict[str, Feed] = {}
        self._closed = False

    def publish(self, topic: str, data: str) -> None:
        """Set the topic's value and send it to the pages that listen, unless it is what they have."""
        present = self._values.get(topic)
        if present is not None and present.data == data:
            return
        self.send(topic, data)
        self._values[topic] = Message(topic, data)

    def send(self, topic: str, data: str) -> None:
        """Send something that passes, without keeping it for pages that open later."""
        message = Message(topic, data)
        for queue, topics in self._listeners.items():
            if topic in topics:
                _put(queue, message)

    def add_feed(self, name: str, feed: Feed) -> None:
        self._feeds[name] = feed

    @property
    def listening(self) -> int:
        return len(self._listeners)

    def close(self) -> None:
        """End every stream: an open one would hold up the console's own end."""
        self._closed = True
        for queue in self._listeners:
            _put(queue, _END)

    async def listen(self, wanted: dict[str, str], heartbeat_s: float = 10.0) -> AsyncGenerator[Message | None]:
        """Everything wanted (topic or `feed:argument` -> position), for ever; None now and then shows that it lives."""
        queue: asyncio.Queue[Message] = asyncio.Queue(QUEUE_LIMIT)
        topics = frozenset(name for name in wanted if self._feed(name) is None)
        tasks = [asyncio.create_task(self._pump(name, position, queue)) for name, position in wanted.items()]
        self._listeners[queue] = topics
        try:
            for name in topics:
                if name in self._values:
                    yield self._values[name]
            while not self._closed:
                try:
                    message = await asyncio.wait_for(queue.get(), heartbeat_s)
                except TimeoutError:
                    yield None
                    continue
                if message is _END:
                    return
                yield message
        finally:
            del self._listeners[queue]
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    def _feed(self, name: str) -> Feed | None:
        return self._feeds.get(name.partition(":")[0])

    async def _pump(self, name: str, position: str, queue: asyncio.Queue[Message]) -> None:
        feed = self._feed(name)
        if feed is None:
            return
        argument = name.partition(":")[2]
        messages = feed(argument, position)
        try:
            async with aclosing(messages):  # type: ignore[type-var]
                async for message in messages:
                    await queue.put(message._replace(topic=name))
        except OSError as error:  # the page asks again by itself, from where it was
            log.warning("The feed %s broke off: %s", name, error)
            await queue.put(_END)


def _put(queue: asyncio.Queue[Message], message: Message) -> None:
    """A page that does not read loses the oldest value, not the newest."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(message)
