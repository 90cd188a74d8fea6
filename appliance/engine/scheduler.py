"""Which request computes how many tokens in the next step. Plain data: no torch, no clock, no sockets.

One budget of tokens a step is shared: decodes first, then chunks of prefills, of which short ones are done at once and
long ones go on beside them. When the cache is full, the request that matters least is preempted: its blocks are freed
and its tokens are computed again later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from appliance.engine.block_pool import BlockPool, block_hash, root_hash
from appliance.engine.request import Request

# No chunk that leaves some of its prompt is smaller than this part of the budget, but for the last of a step: each
# passes over all of its context, so that many small ones would cost more than they compute.
SMALLEST_PART: Final = 8
# Blocks of waiting prompts that are hashed in one step, to find them in the prefix cache: some 5 ms at most.
HASHED_BLOCKS: Final = 1024
# Waiting requests that others may overtake in one step.
MOST_PUT_OFF: Final = 256


@dataclass(frozen=True)
class Limits:
    """What a step may hold."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool = True


class Scheduled(NamedTuple):
    """`num_tokens` pending tokens of `request` are computed in this step; with all of them, its next one is sampled."""

    request: Request
    num_tokens: int

    @property
    def samples(self) -> bool:
        return self.num_tokens == self.request.num_pending_tokens


class Scheduler:
    """Owns the waiting and the running requests and their blocks.

    A step is `schedule()`, then the model, then `complete()` and `Request.accept()` for each that sampled a token, then
    `finish()` for those that ended.
    """

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        assert pool.num_blocks * pool.block_size >= limits.max_model_len, "one sequence of full length must fit"
        self.limits = limits
        self.pool = pool
        self.running: list[Request] = []  # by rank: the last is preempted first
        self.num_preemptions = 0
        self.prompt_tokens_seen = 0
        self.prompt_tokens_cached = 0
        self._waiting: list[tuple[int, int, Request]] = []
        self._live: dict[str, Request] = {}
        self._arrivals = 0
        self._admissions = 0
        self._dead_entries = 0  # at most as many in the queue belong to requests that were finished while they waited
        self._free_slots = list(range(limits.max_num_seqs))
        self._hashes_left = 0  # blocks that may still be hashed in this step

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._live.values()))

    @property
    def num_waiting(self) -> int:
        return len(self._live) - len(self.running)

    def get(self, request_id: str) -> Request | None:
        return self._live.get(request_id)

    def refusal(self, request: Request) -> str | None:
        """Why `request` can never run here, or None. The front door checks this first, but it is not relied on."""
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
        """Queue a request that has no `refusal`."""
        assert self.refusal(request) is None
        request.arrival = self._arrivals
        self._arrivals += 1
        self._live[request.request_id] = request
        self._wait(request)

    def schedule(self) -> list[Scheduled]:
        """The next step: decodes first, then prefills, in order of rank within each. Empty if there is nothing to
        do."""
        budget = self.limits.max_num_batched_tokens
        planned: dict[Request, int] = {}
        num_preemptions = self.num_preemptions
        for request in [running for running in self.running if running.num_pending_tokens == 1]:
            if len(planned) == budget:
                break
            if not request.block_ids:
                continue  # preempted a moment ago
            while not self._grow(request):
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
        prefills = [running for running in self.running if running not in planned]
        for _, equals in groupby(prefills, key=lambda request: request.priority):
            shares = _shares(list(equals), budget)
            planned |= shares
            budget -= sum(shares.values())
        step = [Scheduled(request, count) for request, count in planned.items()]
        step.sort(key=lambda item: item.num_tokens > 1)  # stable
        return step

    def complete(self, step: list[Scheduled]) -> list[Request]:
        """The step has been computed. Returns the requests that now get a sampled token, in the order of `step`."""
        sampled = [item.request for item in step if item.samples]
        for request, num_tokens in step:
            full_before = request.num_computed_tokens // self.pool.block_size
            request.num_computed_tokens += num_tokens
            if self.limits.prefix_caching:
                self._remember(request, full_before)
        return sampled

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it is, and free its blocks."""
        del self._live[request.request_id]
        self._dead_entries += not request.block_ids
        if self._dead_entries > len(self._live) + 64:
            self._waiting = [entry for entry in self._waiting if self._live.get(entry[2].request_id) is entry[2]]
            heapq.heapify(self._waiting)
            self._dead_entries = 0
        if request.block_ids:
            self.running.remove(request)
        self._release(request)

    def check_books(self) -> None:
        """The invariants that hold between steps; meant for tests, and for `INGOT_CHECK_BOOKS` (see `core`)."""
        self.pool.check_books([request.block_ids for request in self.running])
        assert all(request.block_ids for request in self.running)
        assert len(self.running) <= self.limits.max_num_seqs
        slots = [request.slot for request in self.running]
        assert sorted(slots + self._free_slots) == list(range(self.limits.max_num_seqs))
        for request in self.running:
            assert request.num_computed_tokens <= len(request.block_ids) * self.pool.block_size
            assert request.num_pending_tokens > 0

    def _admit(self) -> None:
        """Let waiting requests run while there is room: first come, first served, but for those that are put off,
        because their next block is just being computed for another or hashing them goes on in the next step."""
        self._hashes_left = HASHED_BLOCKS
        put_off: list[tuple[int, int, Request]] = []
        computed = self._being_computed()
        while len(self.running) < self.limits.max_num_seqs and len(put_off) < MOST_PUT_OFF:
            request = self._next_waiting()
            reserve = len(self.running)  # so that those that run can each grow by a block before anyone is preempted
            if request is None or reserve >= self.pool.num_free:
                break
            cached = self._cached_blocks(request)
            lacks = None if cached is None else request.block_hashes[len(cached) : len(cached) + 1]
            if cached is None or (lacks and computed.get(lacks[0], request.priority + 1) <= request.priority):
                put_off.append(heapq.heappop(self._waiting))
                continue
            needed = -(-request.num_tokens // self.pool.block_size) - len(cached)
            if needed + self.pool.num_idle(cached) + reserve > self.pool.num_free:
                break  # nothing overtakes a request that does not fit yet
            heapq.heappop(self._waiting)
            self.pool.share(cached)
            fresh = self.pool.allocate(needed)
            assert fresh is not None
            request.block_ids = cached + fresh
            request.num_computed_tokens = len(cached) * self.pool.block_size
            request.slot = self._free_slots.pop()
            request.admission = self._admissions = self._admissions + 1
            self._count_prefix_hits(request)
            self._insert_running(request)
            if self.limits.prefix_caching and (name := self._next_name(request)) is not None:
                computed[name] = min(request.priority, computed.get(name, request.priority))
        for entry in put_off:
            heapq.heappush(self._waiting, entry)

    def _count_prefix_hits(self, request: Request) -> None:
        """Count a request once, however often it is preempted and admitted again."""
        if not request.was_admitted:
            request.was_admitted = True
            request.num_cached_tokens = request.num_computed_tokens
            self.prompt_tokens_seen += len(request.prompt_token_ids)
            self.prompt_tokens_cached += request.num_computed_tokens

    def _next_waiting(self) -> Request | None:
        """The first in the queue that has not been finished meanwhile; it stays in the queue."""
        while self._waiting:
            request = self._waiting[0][2]
            if self._live.get(request.request_id) is request:
                return request
            heapq.heappop(self._waiting)
        return None

    def _cached_blocks(self, request: Request) -> list[int] | None:
        """Blocks that already hold a prefix of the request; never all of it, since its last token must be computed.

        Names no more blocks than it finds, and one. None where this step's share of hashing ends before that: the names
        stay, and the next step goes on from there.
        """
        if not self.limits.prefix_caching:
            return []
        wanted = (request.num_tokens - 1) // self.pool.block_size
        while True:
            named = min(len(request.block_hashes), wanted)
            found = self.pool.find(request.block_hashes[:named])
            if len(found) < named or named == wanted:
                return found
            if not self._hashes_left:
                return None
            count = min(max(named, 1), wanted - named, self._hashes_left)
            self._hashes_left -= count
            self._name_blocks(request, named + count)

    def _being_computed(self) -> dict[bytes, int]:
        """The names of the blocks that prefills are computing, each with the best priority that does."""
        found: dict[bytes, int] = {}
        if self.limits.prefix_caching:
            for request in reversed(self.running):  # the best last
                if (name := self._next_name(request)) is not None:
                    found[name] = request.priority
        return found

    def _next_name(self, request: Request) -> bytes | None:
        """The hash of the block that a prefill computes next; None if it does not fill one."""
        at, size = request.num_computed_tokens // self.pool.block_size, self.pool.block_size
        if request.num_pending_tokens <= 1 or (at + 1) * size > request.num_tokens:
            return None
        self._name_blocks(request, at + 1)
        return request.block_hashes[at]

    def _remember(self, request: Request, full_before: int) -> None:
        full = request.num_computed_tokens // self.pool.block_size
        self._name_blocks(request, full)
        for index in range(full_before, full):
            self.pool.remember(request.block_ids[index], request.block_hashes[index])

    def _name_blocks(self, request: Request, count: int) -> None:
        size = self.pool.block_size
        names = request.block_hashes
        for index in range(len(names), count):
            parent = names[-1] if names else root_hash(request.cache_salt)
            names.append(block_hash(parent, request.tokens(index * size, (index + 1) * size)))

    def _grow(self, request: Request) -> bool:
        """Make room in the request's blocks for one more token."""
        if request.num_computed_tokens < len(request.block_ids) * self.pool.block_size:
            return True
        fresh = self.pool.allocate(1)
        if fresh is None:
            return False
        request.block_ids.extend(fresh)
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        self.num_preemptions += 1
        self._wait(request)

    def _release(self, request: Request) -> None:
        if request.slot >= 0:
            self._free_slots.append(request.slot)
            request.slot = -1
        self.pool.release(request.block_ids)
        request.block_ids = []
        request.num_computed_tokens = 0

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


def _shares(prefills: list[Request], budget: int) -> dict[Request, int]:
    """How many tokens of `budget` each of `prefills`, in order of rank, computes: in all as many as there are.

    The first gets half, so that it always goes on. The others share the rest, shortest first: a short one is done, and
    what it does not need is left to the longer ones, whose parts are equal but for the least that is worth a chunk.
    """
    given = {}
    least = -(-budget // SMALLEST_PART)
    left = budget
    if prefills and budget:
        first = prefills[0]
        given[first] = min(first.num_pending_tokens, -(-budget // 2))
        left -= given[first]
        others = sorted(prefills[1:], key=lambda request: request.num_pending_tokens)  # stable
        for place, request in enumerate(others):
            if not left:
                break
            given[request] = min(request.num_pending_tokens, max(left // (len(others) - place), least), left)
            left -= given[request]
    for request in prefills:
        more = min(request.num_pending_tokens - given.get(request, 0), left)
        if more:
            given[request] = given.get(request, 0) + more
            left -= more
    return given
