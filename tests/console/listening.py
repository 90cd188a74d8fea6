"""What an open page is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from console.live.hub import Message


async def message_with(
    messages: AsyncIterator[Message | None], *texts: str, without: Collection[str] = (), within_s: float = 30
) -> Message:
    """The next one in which all of `texts` stand and nothing of `without`, whatever else comes before it."""
    async with asyncio.timeout(within_s):
        async for message in messages:
            if message is None:  # the connection lives
                continue
            if all(text in message.data for text in texts) and not any(text in message.data for text in without):
                return message
    raise AssertionError("the messages have ended")
