"""A scheduler with a device that computes nothing, and knows of each page and state which tokens made it: whoever sees
another's, or one that was let go, is found out at once. Plain data, no torch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from appliance.core_protocol import SamplingParams
from appliance.engine.block_pool import BlockPool
from appliance.engine.cache_manager import CacheManager
from appliance.engine.request import Request
from appliance.engine.scheduler import Limits, Scheduled, Scheduler
from appliance.engine.snapshots import FRESH, Snapshots
from appliance.engine.speculation.drafts import Drafts, accepted_run

EOS = frozenset({0})
NOTHING = 0
"""The state of no tokens."""


def after(state: int, token: int) -> int:
    """The state of one more token: no two sequences have the same."""
    return hash((state, token, 1))


def following(state: int) -> int:
    """The model: a token that depends on all before it, and now and then ends the answer."""
    return state % 23


def answer(prompt: Sequence[int], max_tokens: int, context: int, *, ignore_eos: bool = False) -> list[int]:
    """Of a run that is alone, and computes everything."""
    state, said = NOTHING, list[int]()
    for token in prompt:
        state = after(state, token)
    while len(said) < max_tokens and len(prompt) + len(said) < context:
        said.append(following(state))
        if said[-1] in EOS and not ignore_eos:
            break
        state = after(state, said[-1])
    return said


class Device:
    """Keeps pages by position, in pools whose layers look back as far as `windows` say, and with `has_states` a state
    that only goes forward: it takes a step's drafts once they are accepted, in the next one."""

    def __init__(self, windows: Sequence[int | None], block_size: int, has_states: bool) -> None:
        self.windows, self.block_size, self.has_states = windows, block_size, has_states
        self.pages: dict[tuple[int, int, int], int] = {}  # (pool, block, offset) -> the state of the tokens up to there
        self.rows = {FRESH: NOTHING}
        self.slots: dict[int, int] = {}
        self._kept: dict[int, dict[int, int]] = {}  # by slot and position, the drafts that its state has not taken
        self._states: dict[Request, list[int]] = {}  # by request, of so many of its tokens
        self._rng = random.Random(0)

    def compute(self, step: Sequence[Scheduled]) -> list[list[int]]:
        """What is sampled for each item: nothing, a token, or those behind its accepted drafts too."""
        slots = [item.request.slot for item in step]
        for item in step:
            if item.loads is not None:
                self.slots[item.request.slot] = self.rows[item.loads]
        sampled = [self._compute(item) for item in step]
        for item, slot in zip(step, slots, strict=True):
            if item.saves is not None:
                self.rows[item.saves] = self.slots[slot]
        return sampled

    def forget(self, request: Request) -> None:
        self._states.pop(request, None)

    def _compute(self, item: Scheduled) -> list[int]:
        request, end = item.request, item.start + item.num_known
        states = self._known(request, end)[: end + 1]
        for draft in item.drafts:
            states.append(after(states[-1], draft))
        if self.has_states:
            self._go_on(item, states)
        for position in range(item.start, item.context_len):
            for pool, window in enumerate(self.windows):
                self._look_back(request, pool, window, position, states)
                self.pages[self._place(request, pool, position)] = states[position + 1]
        if not item.samples:
            return []
        sampled = [following(state) for state in states[end:]]
        return sampled[: accepted_run(item.drafts, sampled, [True] * len(sampled))]

    def _go_on(self, item: Scheduled, states: list[int]) -> None:
        """The state takes the drafts that were accepted, then what the step knows; the step's own drafts are kept."""
        request, behind = item.request, item.start - item.num_replayed
        assert self.slots[request.slot] == states[behind], f"{request.request_id} has another state"
        assert item.num_known == 1 or not item.num_replayed, f"{request.request_id} replays before a prompt"
        kept = self._kept.setdefault(request.slot, {})
        accepted = [kept[position] for position in range(behind, item.start)]
        assert accepted == list(request.tokens(behind, item.start)), f"{request.request_id} kept other drafts"
        self.slots[request.slot] = states[item.start + item.num_known]
        kept.update(enumerate(item.drafts, item.start + item.num_known))

    def _look_back(self, request: Request, pool: int, window: int | None, position: int, states: list[int]) -> None:
        """From a token to the first that it sees, the last, and one between them."""
        first = 0 if window is None else max(position + 1 - window, 0)
        if first == position:
            return
        for seen in {first, position - 1, self._rng.randrange(first, position)}:
            found = self.pages.get(self._place(request, pool, seen))
            assert found == states[seen + 1], f"{request.request_id} sees another's page at {seen} from {position}"

    def _place(self, request: Request, pool: int, position: int) -> tuple[int, int, int]:
        pages, block = request.pages[pool], position // self.block_size
        assert pages.first <= block < pages.end, f"{request.request_id} has no page for {position}"
        return pool, pages.ids[block - pages.first], position % self.block_size

    def _known(self, request: Request, count: int) -> list[int]:
        """The states of its first 0 to `count` tokens. One that is not read is what the model gives."""
        states = self._states.setdefault(request, [NOTHING])
        if len(states) <= count:
            given = request.tokens(len(states) - 1, count)
            for token in given:
                states.append(after(states[-1], token))
            while len(states) <= count:
                states.append(after(states[-1], following(states[-1])))
        return states


class Guesses:
    """Proposes what comes next, or something else."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def propose(self, request: Request, most: int) -> tuple[int, ...]:
        state = NOTHING
        for token in request.tokens(0, request.num_tokens):
            state = after(state, token)
        drafts = list[int]()
        for _ in range(self._rng.randrange(most + 1)):
            drafts.append(following(state) if self._rng.random() < 0.8 else self._rng.randrange(23))
            state = after(state, drafts[-1])
        return tuple(drafts)


class Window(NamedTuple):
    """A pool of layers with a window."""

    window: int
    num_blocks: int


class Run:
    """A scheduler with its device, in which steps overlap or do not."""

    def __init__(
        self,
        *,
        num_blocks: int | None = 24,
        block_size: int = 4,
        seqs: int = 4,
        budget: int = 19,
        context: int = 80,
        snapshots: int | None = 6,
        windows: Sequence[Window] = (),
        drafts: Drafts | None = None,
        overlaps: bool = False,
    ) -> None:
        """`num_blocks` None: every layer has one of the `windows`."""
        rows = None if snapshots is None else Snapshots(seqs + 1, snapshots)
        pools = [] if num_blocks is None else [BlockPool(num_blocks, block_size)]
        pools += [BlockPool(pool.num_blocks, block_size, pool.window) for pool in windows]
        self.scheduler = Scheduler(Limits(seqs, budget, context), CacheManager(*pools, snapshots=rows), drafts)
        self.device = Device([pool.window for pool in pools], block_size, snapshots is not None)
        self.overlaps = overlaps
        self.in_flight: tuple[list[Scheduled], list[list[int]]] | None = None
        self.answers: dict[str, list[int]] = {}

    def add(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int = 8,
        priority: int = 0,
        salt: str = "",
        *,
        ignore_eos: bool = False,
    ) -> Request:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
        request = Request(name, prompt, sampling, 0, priority, salt)
        self.scheduler.add(request)
        return request

    def abort(self, request: Request) -> None:
        self.scheduler.finish(request)
        self.device.forget(request)

    def step(self, *, check_books: bool = True) -> list[Scheduled]:
        """The step that was launched."""
        if self.scheduler.awaits_tokens or (self.in_flight and any(item.drafts for item in self.in_flight[0])):
            self._read()
        step = self.scheduler.schedule()
        launched = (step, self.device.compute(step)) if step else None
        self.scheduler.launched(step)
        self._read()
        self.in_flight = launched
        if not self.overlaps:
            self._read()
        if check_books:
            self.scheduler.check_books()
        return step

    def _read(self) -> None:
        if self.in_flight is None:
            return
        step, sampled = self.in_flight
        self.in_flight = None
        self.scheduler.complete([item for item in step if self.scheduler.is_live(item.request)])
        for item, tokens in zip(step, sampled, strict=True):
            if tokens and self.scheduler.is_live(item.request):
                self._take(item, tokens)

    def _take(self, item: Scheduled, tokens: list[int]) -> None:
        request, reason, taken = item.request, None, 0
        for token in tokens:
            taken += 1
            reason = request.accept(token, EOS, self.scheduler.limits.max_model_len)
            if reason is not None:
                break
        if item.drafts:
            self.scheduler.keep(item, taken - 1)
        if reason is not None:
            self.answers[request.request_id] = request.output_token_ids
            self.abort(request)

    def drain(self) -> None:
        for _ in range(10_000):
            if not len(self.scheduler) and self.in_flight is None:
                return
            self.step()
        raise AssertionError("the requests do not end")


def prompts(rng: random.Random, context: int, said: list[list[int]]) -> Iterator[list[int]]:
    """New ones, beginnings of older ones with another end, and next turns of what was `said`."""
    roots = [[rng.randrange(1, 9) for _ in range(rng.randrange(1, context))] for _ in range(3)]
    while True:
        root = rng.choice(roots + said[-6:])
        kept = root[: rng.randrange(len(root) + 1)] if rng.random() < 0.6 else root
        prompt = kept + [rng.randrange(1, 9) for _ in range(rng.randrange(0, 20))]
        yield prompt[: context - 1] or [1]
