"""Runs work on a medium that may never respond in a thread that can be abandoned."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any


async def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Like `asyncio.to_thread`, but neither the pool nor the end of this process waits for the thread: a drive that
    does not respond may block it for ever."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = work(*arguments)
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=f"ingot-{getattr(work, '__name__', 'work')}", daemon=True).start()
    return await ended
