"""Decides which requests run in the next step, and how many tokens of each. Plain data: no torch, clock or sockets.

Every step has one token budget. Decodes come first; prefills get the rest in chunks, those with the fewest tokens left
first, while the oldest keeps making progress. When the KV cache is full, the lowest-ranked request is preempted: its
blocks are freed, and its tokens are recomputed later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from appliance.engine.cache_manager import CacheManager
from appliance.engine.request import Request
from appliance.engine.speculation.drafts import Drafts

# At most this many waiting requests may be passed over in one step.
MOST_PUT_OFF: Final = 256


@dataclass(frozen=True)
class Limits:
    """Limits of a step and of a sequence."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


class Scheduled(NamedTuple):
    """A step computes `num_tokens` tokens of `request` from its token `start` on; if these are all that are pending, it
    `samples` the next one. Before it, the state of row `loads` is copied to the request's slot, where that is not None
    (FRESH: zeros); behind it, the slot's is copied to row `saves`. The last of the tokens are `drafts`: the next token
    is sampled behind the one before them, and behind each. The state lacks `num_replayed` tokens before `start`."""

    request: Request
    num_tokens: int
    start: int
    samples: bool
    admission: int
    loads: int | None = None
    saves: int | None = None
    drafts: tuple[int, ...] = ()
    num_replayed: int = 0

    @property
    def context_len(self) -> int:
        """Tokens that the last of the step sees, itself included."""
        return self.start + self.num_tokens

    @property
    def is_decode(self) -> bool:
        """One known token, with or without drafts."""
        return self.num_tokens == 1 + len(self.drafts)

    @property
    def num_known(self) -> int:
        """Tokens that are computed without drafts."""
        return self.num_tokens - len(self.drafts)

    @property
    def num_sampled(self) -> int:
        """Rows of logits that are sampled from."""
        return 1 + len(self.drafts) if self.samples else 0


class Scheduler:
    """Owns the waiting and running requests. What they hold of the caches is the cache manager's.

    A step: `schedule()`, run the model, `launched()`, and once its result is read `complete()`, `Request.accept()` for
    each request that sampled a token, `keep()` for each that accepted drafts, and `finish()` for each that ended. The
    next step may be scheduled and launched before the result of the last one is read, unless it `awaits_tokens`.
    """

    def __init__(self, limits: Limits, cache: CacheManager, drafts: Drafts | None = None) -> None:
        assert cache.holds(limits.max_model_len), "one sequence of full length must fit"
        self.limits = limits
        self.cache = cache
        self.drafts = drafts
        self.running: list[Request] = []  # by rank; the last is preempted first
        self.num_preemptions = 0
        self.prompt_tokens_seen = 0
        self.prompt_tokens_cached = 0
        self._waiting: list[tuple[int, int, Request]] = []
        self._live: dict[str, Request] = {}
        self._live_probes = 0
        self._arrivals = 0
        self._admissions = 0
        self._dead_entries = 0  # upper bound on queue entries whose request finished while waiting
        self._free_slots = list(range(limits.max_num_seqs))

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._live.values()))

    @property
    def num_running(self) -> int:
        """Probes left out, as in `num_waiting`."""
        return sum(not request.probe for request in self.running)

    @property
    def num_waiting(self) -> int:
        return len(self._live) - self._live_probes - self.num_running

    def get(self, request_id: str) -> Request | None:
        return self._live.get(request_id)

    def refusal(self, request: Request) -> str | None:
        """Why `request` can never run, or None. The front door checks the same; this does not rely on it."""
        if request.request_id in self._live:
            return f"a request with the id {request.request_id!r} is already running"
        if not request.prompt_token_ids:
            return "the prompt has no tokens"
        if len(request.prompt_token_ids) >= self.limits.max_model_len:
            return (
                f"the prompt has {len(request.prompt_token_ids):,} tokens; the context of "
                f"{self.limits.max_model_len:,} must have room for at least one more"
            )
        return None

    def add(self, request: Request) -> None:
        """Queue a request for which `refusal` returns None."""
        assert self.refusal(request) is None
        request.arrival = self._arrivals
        self._arrivals += 1
        self._live[request.request_id] = request
        self._live_probes += request.probe
        self._wait(request)

    def schedule(self) -> list[Scheduled]:
        """The next step: decodes, then prefills, each in order of rank. Empty if there is nothing to do."""
        budget = self.limits.max_num_batched_tokens
        planned: dict[Request, int] = {}
        num_preemptions = self.num_preemptions
        limit = self.limits.max_model_len
        ongoing = [running for running in self.running if not running.awaits_its_last(limit)]
        for request in [running for running in ongoing if running.num_pending_tokens == 1]:
            if len(planned) == budget:
                break
            if not request.is_running:
                continue  # preempted earlier in this loop
            while not self.cache.grow(request, 1):
                victim = self.running[-1]
                planned.pop(victim, None)
                self._preempt(victim)
                if victim is request:
                    break
            else:
                planned[request] = 1
        budget -= len(planned)
        if budget and self.num_preemptions == num_preemptions:
            self._admit()
        prefills = [one for one in self.running if one not in planned and not one.awaits_its_last(limit)]
        for _, equals in groupby(prefills, key=lambda request: request.priority):
            most = {request: self.cache.most_tokens(request) for request in equals if request.is_running}
            shares = self._with_room(_shares(most, budget), planned)
            planned |= shares
            budget -= sum(shares.values())
        step = [self._scheduled(request, count) for request, count in planned.items()]
        if self.drafts is not None:
            step = self._with_drafts(step, self.drafts, budget)
        step.sort(key=lambda item: not item.is_decode)  # stable
        return step

    def _with_room(self, shares: dict[Request, int], planned: dict[Request, int]) -> dict[Request, int]:
        """As many tokens of prompts as there is room for. Behind a window there may be none until a step in flight is
        read; before the others, those of lower rank are preempted."""
        for request in sorted(shares, key=_rank):
            while request.is_running and not (room := self.cache.grow(request, shares[request])):
                victim = self.running[-1]
                if victim is request:
                    break
                planned.pop(victim, None)
                self._preempt(victim)
            shares[request] = room if request.is_running else 0
        return {request: count for request, count in shares.items() if count}

    @property
    def awaits_tokens(self) -> bool:
        """What was sampled last must be read before the next step is scheduled: drafts follow it."""
        return self.drafts is not None and any(map(self.drafts.are_wanted, self.running))

    def _with_drafts(self, step: list[Scheduled], drafts: Drafts, budget: int) -> list[Scheduled]:
        """Add drafts to decodes, in order of rank, where others leave tokens of the budget, sequences of the step, and
        blocks: nobody is preempted for a draft."""
        limits, found = self.limits, []
        rows = drafts.most_rows - len(step)
        for item in step:
            request = item.request
            proposed: tuple[int, ...] = ()
            if item.is_decode and item.samples:
                to_come = request.sampling.max_tokens - request.num_sampled
                to_come = min(to_come, limits.max_model_len - request.num_tokens)
                most = self.cache.most_drafts(request, min(budget, rows, to_come - 1))
                proposed = drafts.propose(request, most)
                proposed = proposed[: self.cache.grow_for_drafts(request, len(proposed), len(self.running))]
            budget, rows = budget - len(proposed), rows - len(proposed)
            found.append(item._replace(num_tokens=item.num_tokens + len(proposed), drafts=proposed))
        return found

    def _scheduled(self, request: Request, num_tokens: int) -> Scheduled:
        start, samples = request.num_computed_tokens, num_tokens == request.num_pending_tokens
        saves = self.cache.take_row(request, start + num_tokens)
        return Scheduled(
            request, num_tokens, start, samples, request.admission, request.loads, saves,
            num_replayed=request.num_replayed,
        )  # fmt: skip

    def launched(self, step: list[Scheduled]) -> None:
        """Record that `step` is being computed."""
        for item in step:
            item.request.num_computed_tokens += item.num_known
            item.request.num_unread += item.samples
            item.request.num_replayed = 0
            self.cache.launched(item.request)

    def complete(self, step: list[Scheduled]) -> list[Request]:
        """Record that `step` was computed, by requests that have not ended since it was launched. Returns those that
        sampled a token, in the order of `step`."""
        for item in step:
            item.request.num_unread -= item.samples
            if item.request.is_running and item.request.admission == item.admission:
                self.cache.commit(item.request, item.start, item.start + item.num_known)
        return [item.request for item in step if item.samples]

    def keep(self, item: Scheduled, accepted: int) -> None:
        """Record that so many drafts of `item`, which was completed, have become tokens of its request."""
        request = item.request
        if self.drafts is not None:
            self.drafts.note(request, len(item.drafts), accepted)
        if accepted and request.is_running and request.admission == item.admission:
            request.num_computed_tokens += accepted
            request.num_replayed = accepted
            self.cache.commit(request, request.num_computed_tokens - accepted, request.num_computed_tokens)

    def is_live(self, request: Request) -> bool:
        """Whether it has neither finished nor been aborted."""
        return self._live.get(request.request_id) is request

    def finish(self, request: Request) -> None:
        """Remove a request, waiting or running, and free its blocks."""
        del self._live[request.request_id]
        self._live_probes -= request.probe
        self._dead_entries += not request.is_running
        if self._dead_entries > len(self._live) + 64:
            self._waiting = [entry for entry in self._waiting if self._live.get(entry[2].request_id) is entry[2]]
            heapq.heapify(self._waiting)
            self._dead_entries = 0
        if request.is_running:
            self.running.remove(request)
        self._release(request)

    def check_books(self) -> None:
        """Assert the invariants between steps. For tests, and for `INGOT_CHECK_BOOKS` (see `core`)."""
        self.cache.check_books(self.running)
        assert all(request.is_running and request.pages for request in self.running)
        assert len(self.running) <= self.limits.max_num_seqs
        slots = [request.slot for request in self.running]
        assert sorted(slots + self._free_slots) == list(range(self.limits.max_num_seqs))
        for request in self.running:
            assert request.num_pending_tokens > 0

    def _admit(self) -> None:
        """Admit waiting requests while there is room, first come, first served. A request is put off while another
        one computes what it needs next, or until the next step if this step's hashing budget is used up."""
        self.cache.begin_step()
        put_off: list[tuple[int, int, Request]] = []
        coming = self.cache.being_computed(self.running)
        while len(self.running) < self.limits.max_num_seqs and len(put_off) < MOST_PUT_OFF:
            request = self._next_waiting()
            # Each running request can grow by one block without a preemption.
            if request is None or len(self.running) >= self.cache.num_free_blocks:
                break
            hit = self.cache.match_prefix(request)
            if hit is None or self.cache.is_coming(request, hit, coming, self.running):
                put_off.append(heapq.heappop(self._waiting))
                continue
            if not self.cache.allocate(request, hit, self.running, self.limits.max_num_batched_tokens):
                break  # no request overtakes one that does not fit yet
            heapq.heappop(self._waiting)
            request.slot = self._free_slots.pop()
            request.admission = self._admissions = self._admissions + 1
            self._count_prefix_hits(request)
            self._insert_running(request)
            self.cache.add_computed(coming, request)
        for entry in put_off:
            heapq.heappush(self._waiting, entry)

    def _count_prefix_hits(self, request: Request) -> None:
        """Counts each of the clients' requests once, even if it is preempted and admitted again."""
        if request.was_admitted:
            return
        request.was_admitted = True
        request.num_cached_tokens = request.num_computed_tokens
        if not request.probe:
            self.prompt_tokens_seen += len(request.prompt_token_ids)
            self.prompt_tokens_cached += request.num_computed_tokens

    def _next_waiting(self) -> Request | None:
        """The first live request of the queue, without removing it. Drops finished ones on the way."""
        while self._waiting:
            request = self._waiting[0][2]
            if self._live.get(request.request_id) is request:
                return request
            heapq.heappop(self._waiting)
        return None

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        self.num_preemptions += 1
        self._wait(request)

    def _release(self, request: Request) -> None:
        if request.slot >= 0:
            self._free_slots.append(request.slot)
            request.slot = -1
        self.cache.free(request)

    def _wait(self, request: Request) -> None:
        heapq.heappush(self._waiting, (request.priority, request.arrival, request))

    def _insert_running(self, request: Request) -> None:
        rank = _rank(request)
        at = len(self.running)
        while at and _rank(self.running[at - 1]) > rank:
            at -= 1
        self.running.insert(at, request)


def _rank(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival


def _shares(prefills: dict[Request, int], budget: int) -> dict[Request, int]:
    """Split `budget` among `prefills`, which are in order of rank, until either is used up; each may get so many.

    Those with the fewest tokens left go first, so that the mean time to a first token is the shortest: prompts of equal
    length are computed one after the other, not side by side until all end together. The first in rank is sure of half,
    so that it always makes progress, however many shorter ones arrive.
    """
    given = {first: min(prefills[first], -(-budget // 2)) for first in list(prefills)[:1] if budget}
    left = budget - sum(given.values())
    for request in sorted(prefills, key=lambda request: request.num_pending_tokens):  # stable
        more = min(prefills[request] - given.get(request, 0), left)
        if more:
            given[request] = given.get(request, 0) + more
            left -= more
    return given
