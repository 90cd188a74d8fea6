"""Generations in flight: requests to the core, and its outputs on their way back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Protocol

from appliance.core_protocol import (
    Abort,
    AboutCore,
    FromCore,
    Outputs,
    Pooling,
    SamplingParams,
    Submit,
    ToCore,
    TokenLogprob,
    TokenOutput,
)
from appliance.engine_client.channel import CoreGoneError
from appliance.engine_process.errors import EngineGoneError, TooManyRequestsError

MAX_IN_FLIGHT = 4096


class Channel(Protocol):
    def send(self, message: ToCore) -> None: ...

    async def receive(self) -> FromCore: ...


class Watcher(Protocol):
    """Whoever owns the core's process."""

    def generated(self) -> None:
        """A step has produced tokens."""

    def told(self, message: AboutCore) -> None: ...


class TokenWatch(Protocol):
    """Whoever times a generation."""

    def arrived(self, output: TokenOutput, now: float) -> None:
        """An output has come from the core, at `now` of the monotonic clock, read or not."""


class Generation:
    """One request. Outputs that arrive while the reader is busy are merged, so a slow reader holds token ids only, at
    most as many as the context is long."""

    def __init__(
        self, request_id: str, arrived: asyncio.Event, *, probe: bool = False, watch: TokenWatch | None = None
    ) -> None:
        self.request_id = request_id
        self.probe = probe
        self.finished = False
        self._waiting: list[TokenOutput] = []
        self._arrived = arrived
        self._watch = watch
        self._error: EngineGoneError | None = None

    @property
    def failed(self) -> bool:
        """The core is gone, and nothing more can arrive."""
        return self._error is not None

    async def read(self) -> TokenOutput:
        """What has arrived since the last call; waits if there is nothing. The last one has a finish reason."""
        while (output := self.take()) is None:
            self._arrived.clear()
            await self._arrived.wait()
        return output

    def take(self) -> TokenOutput | None:
        """The same without waiting. Raises EngineGoneError once nothing more can arrive."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            return merge(waiting)
        if self._error is not None:
            raise self._error
        return None

    def add(self, output: TokenOutput, now: float) -> None:
        if self._watch is not None:
            self._watch.arrived(output, now)
        self.finished = self.finished or output.finish_reason is not None
        self._waiting.append(output)
        self._arrived.set()

    def fail(self, error: EngineGoneError) -> None:
        self.finished = True
        self._error = error
        self._arrived.set()


class CoreClient:
    """Starts generations, delivers their tokens, and ends them for either side."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._generations: dict[str, Generation] = {}
        self._numbers = itertools.count(1)
        self._gone: str | None = None
        self._batches = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """How many generations clients wait for."""
        return sum(not generation.probe for generation in self._generations.values())

    async def idle(self) -> None:
        """Returns when nothing is in flight."""
        await self._idle.wait()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Of several generations, one after another: it is in flight between them as well."""
        self._batches += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._batches -= 1
            self._set_idle()

    def start(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        arrived: asyncio.Event | None = None,
        probe: bool = False,
        watch: TokenWatch | None = None,
        pooling: Pooling | None = None,
    ) -> Generation:
        """`arrived` is set when there is something to take; several generations may share one. A `probe` is a request
        of our own: it is nobody's load, and must not be refused because clients have filled the queue."""
        if self._gone is not None:
            raise EngineGoneError(self._gone)
        if len(self._generations) >= MAX_IN_FLIGHT and not probe:
            raise TooManyRequestsError(f"{MAX_IN_FLIGHT:,} requests are already running or waiting")
        generation = Generation(f"r{next(self._numbers)}", arrived or asyncio.Event(), probe=probe, watch=watch)
        submit = Submit(
            request_id=generation.request_id,
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            priority=priority,
            cache_salt=cache_salt,
            probe=probe,
            pooling=pooling,
        )
        try:
            self._channel.send(submit)
        except CoreGoneError as error:
            raise EngineGoneError(str(error)) from error
        self._generations[generation.request_id] = generation
        self._idle.clear()
        return generation

    def release(self, generation: Generation) -> None:
        """Abandon it: its slot in the core is freed, unless it has already finished."""
        known = self._generations.pop(generation.request_id, None) is not None
        self._set_idle()
        if not known or generation.finished or self._gone is not None:
            return
        try:
            self._channel.send(Abort(generation.request_id))
        except CoreGoneError:
            return  # with its slot

    def _set_idle(self) -> None:
        if not self._generations and not self._batches:
            self._idle.set()

    async def receive(self, watcher: Watcher) -> None:
        """Read what the core sends, until this is cancelled. Tokens go from the channel to whoever asked for them; what
        the core says of itself goes to `watcher`."""
        while True:
            message = await self._channel.receive()
            if isinstance(message, Outputs):
                self.deliver(message)
                watcher.generated()
            else:
                watcher.told(message)

    def deliver(self, message: Outputs) -> None:
        now = time.perf_counter()
        for output in message.outputs:
            # It may have been released while its last outputs were in transit.
            if (generation := self._generations.get(output.request_id)) is not None:
                generation.add(output, now)

    def fail(self, reason: str) -> None:
        """The core is gone: waiting requests fail with the reason, and new ones are refused."""
        self._gone = reason
        for generation in self._generations.values():
            generation.fail(EngineGoneError(reason))


def merge(outputs: list[TokenOutput]) -> TokenOutput:
    if len(outputs) == 1:
        return outputs[0]
    last = outputs[-1]
    token_ids: tuple[int, ...] = tuple(itertools.chain.from_iterable(output.token_ids for output in outputs))
    logprobs: tuple[TokenLogprob, ...] = tuple(itertools.chain.from_iterable(output.logprobs for output in outputs))
    return TokenOutput(
        request_id=last.request_id,
        token_ids=token_ids,
        logprobs=logprobs,
        prompt_logprobs=outputs[0].prompt_logprobs,
        finish_reason=last.finish_reason,
        stop_token_id=last.stop_token_id,
        num_cached_tokens=max(output.num_cached_tokens for output in outputs),
        error=last.error,
        is_refusal=last.is_refusal,
    )
