"""Reports once a second that the core is alive, what it is doing and for how long; ends it if its parent is gone."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import zmq

from appliance.core_protocol import CoreBeat, encode
from appliance.engine.link import CoreLink
from appliance.protocol import Load, StepKind

INTERVAL_S = 1.0
PARENT_CHECK_S = 0.25
STOP_WITHIN_S = 2.0  # beyond, the stop goes on without the thread


@dataclass
class Activity:
    """What the main loop is doing; it alone writes, the heartbeat reads. `taken` are the seconds of each so far."""

    where: str = "starting"
    since: float = field(default_factory=time.monotonic)
    taken: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def enter(self, where: str) -> None:
        now = time.monotonic()
        self.taken[self.where] += now - self.since
        self.where, self.since = where, now


@dataclass(frozen=True)
class Counters:
    """Running totals and present counts of an engine, from which rates are made."""

    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cache_usage: float = 0.0
    prefix_cache_hit_rate: float = 0.0
    preemptions: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    steps: Mapping[StepKind, int] = field(default_factory=dict)


class Heartbeat:
    """A daemon thread. `counters` is called from it, so it may only read plain numbers. Stop it before closing the
    link: its socket belongs to the link's context."""

    def __init__(self, link: CoreLink, activity: Activity, counters: Callable[[], Counters], parent: int) -> None:
        self._link = link
        self._activity = activity
        self._counters = counters
        self._parent = parent  # passed in, not queried: the parent may be gone by now
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has closed its socket, at the latest after STOP_WITHIN_S."""
        self._stopping.set()
        self._thread.join(STOP_WITHIN_S)

    def _run(self) -> None:
        with self._link.second_sender() as sender:
            self._beat_until_stopped(sender)

    def _beat_until_stopped(self, sender: zmq.Socket[bytes]) -> None:
        before, then = self._counters(), time.monotonic()
        next_beat = then
        while not self._stopping.is_set():
            if os.getppid() != self._parent:
                os._exit(1)  # the parent is gone
            now = time.monotonic()
            if now >= next_beat:
                counters = self._counters()
                with contextlib.suppress(zmq.Again):
                    sender.send(encode(self._beat(before, counters, max(now - then, 1e-3))), zmq.NOBLOCK)
                before, then = counters, now
                next_beat = now + INTERVAL_S
            self._stopping.wait(PARENT_CHECK_S)

    def _beat(self, before: Counters, after: Counters, seconds: float) -> CoreBeat:
        load = Load(
            running=after.running,
            waiting=after.waiting,
            prompt_tokens_per_s=(after.prompt_tokens - before.prompt_tokens) / seconds,
            output_tokens_per_s=(after.output_tokens - before.output_tokens) / seconds,
            cache_usage=after.cache_usage,
            prefix_cache_hit_rate=after.prefix_cache_hit_rate,
            preemptions=after.preemptions,
            cache_queries=after.cache_queries,
            cache_hits=after.cache_hits,
            draft_tokens=after.draft_tokens,
            accepted_tokens=after.accepted_tokens,
            steps=dict(after.steps),
        )
        return CoreBeat(where=self._activity.where, busy_s=time.monotonic() - self._activity.since, load=load)
