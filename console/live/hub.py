"""What is sent to open pages: topics that anything in the console may publish to, and feeds that a page asks for by
name and continues where it left off.

A page keeps one stream for all its topics. A *topic* (`strip`, `load`) has a present value: a page that opens, or
comes back from sleep, gets the value as it is now and then each new one. A *feed* (`log:20261120-095145-3f2a`) is a
sequence: the page says the position of the last item that it has, and gets what came after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import NamedTuple

log = logging.getLogger(__name__)

TOPIC_LIMIT = 256
"""Values of topics that wait for a page that does not read; beyond it the oldest are dropped, but never a topic's last
value."""
FEED_LIMIT = 64
"""Items of feeds that wait for such a page; beyond it the feeds wait too, since none of theirs may be lost."""


class Message(NamedTuple):
    """`data` is HTML or JSON, depending on the topic; `position` is where a feed would continue."""

    topic: str
    data: str
    position: str = ""


Feed = Callable[[str, str], AsyncIterator[Message]]
"""A feed's (argument, position of the last item seen or "") -> messages, until the page goes away."""


class Hub:
    """Values of topics, and the pages that listen."""

    def __init__(self) -> None:
        self._values: dict[str, Message] = {}
        self._listeners: set[_Listener] = set()
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
        for listener in self._listeners:
            if topic in listener.topics:
                listener.put(Message(topic, data))

    def add_feed(self, name: str, feed: Feed) -> None:
        self._feeds[name] = feed

    @property
    def listening(self) -> int:
        return len(self._listeners)

    def close(self) -> None:
        """End every stream: an open one would hold up the console's own end."""
        self._closed = True
        for listener in self._listeners:
            listener.end()

    async def listen(self, wanted: dict[str, str], heartbeat_s: float = 5.0) -> AsyncGenerator[Message | None]:
        """Everything wanted (topic or `feed:argument` -> position), for ever; None now and then shows that it lives."""
        feeds = {name: feed for name in wanted if (feed := self._feeds.get(name.partition(":")[0]))}
        listener = _Listener(frozenset(wanted.keys() - feeds.keys()))
        tasks = [asyncio.create_task(_pump(name, feed, wanted[name], listener)) for name, feed in feeds.items()]
        self._listeners.add(listener)
        try:
            for name in wanted:
                if name in self._values:
                    yield self._values[name]
            while not self._closed:
                try:
                    message = await asyncio.wait_for(listener.next(), heartbeat_s)
                except TimeoutError:
                    yield None
                    continue
                if message is None:
                    return
                yield message
        finally:
            self._listeners.discard(listener)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Listener:
    """What waits for one page."""

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self._values: deque[Message] = deque()
        self._items: deque[Message] = deque()
        self._room = asyncio.Semaphore(FEED_LIMIT)
        self._arrived = asyncio.Event()
        self._ended = False

    def put(self, message: Message) -> None:
        self._values.append(message)
        if len(self._values) > TOPIC_LIMIT:
            self._drop_outdated()
        self._arrived.set()

    def _drop_outdated(self) -> None:
        """Drop the oldest value that a newer one of its topic follows, if there is any."""
        last = {message.topic: index for index, message in enumerate(self._values)}
        for index, message in enumerate(self._values):
            if index != last[message.topic]:
                del self._values[index]
                return

    async def put_item(self, message: Message) -> None:
        await self._room.acquire()
        self._items.append(message)
        self._arrived.set()

    def end(self) -> None:
        self._ended = True
        self._arrived.set()

    async def next(self) -> Message | None:
        """The next thing to send; None at the end."""
        while not self._ended:
            if self._values:
                return self._values.popleft()
            if self._items:
                self._room.release()
                return self._items.popleft()
            self._arrived.clear()
            await self._arrived.wait()
        return None


async def _pump(name: str, feed: Feed, position: str, listener: _Listener) -> None:
    try:
        async with aclosing(feed(name.partition(":")[2], position)) as messages:  # type: ignore[type-var]
            async for message in messages:
                await listener.put_item(message._replace(topic=name))
    except Exception as error:  # a stream that ends is asked for again; one that lives without it is not
        log.warning("The feed %s failed: %s", name, error, exc_info=not isinstance(error, OSError))
        listener.end()
