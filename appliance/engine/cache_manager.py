"""What sequences hold of the caches, and what of it they share. Plain data: no torch.

Two stores serve all layers. Layers with an entry for each token have *pages*: blocks of one grid, the same for every
such layer (`BlockPool`). Recurrent layers have *rows* of states: a sequence's is that of its slot, and more hold copies
(`Snapshots`). A prefix can be continued from a border between blocks at which there is all of it: the pages of every
block before, and a copy of the state. What is published was computed from tokens that are known, and was read.

Copies are made at three kinds of border: the last one before a prompt's end, one where another prompt forks off, and
every `TURN_GRID` tokens while an answer is written, so that the next turn finds its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from appliance.engine.block_pool import BlockPool, block_hash, root_hash
from appliance.engine.request import Request
from appliance.engine.snapshots import FRESH, Snapshots

# At most this many blocks of waiting prompts are hashed per step for prefix-cache lookups: about 5 ms.
HASHED_BLOCKS: Final = 1024
# Tokens between copies of a state while a turn is written, rounded to blocks; also the least that another copy must
# save to be worth a step that ends at its border.
TURN_GRID: Final = 32
# Copies that a prefill makes for prompts that fork off while it runs: each ends a step, which others wait for as well.
MOST_FORKS: Final = 4


class Hit(NamedTuple):
    """What is known of a prompt: its first `blocks` and, where the model has states, a copy of that behind them by the
    hash `state`. `reach` blocks would be known if there were a copy there."""

    blocks: list[int]
    state: bytes | None = None
    reach: int = 0


class CacheManager:
    """Owns the blocks and the copies of states; `snapshots` is None for a model without states."""

    def __init__(self, pool: BlockPool, *, prefix_caching: bool = True, snapshots: Snapshots | None = None) -> None:
        self._pool = pool
        self._snapshots = snapshots
        self._shares = prefix_caching and (snapshots is None or snapshots.count > 0)
        self._hashes_left = 0
        self._grid = pool.block_size * max(TURN_GRID // pool.block_size, 1)

    @property
    def capacity(self) -> int:
        """Tokens."""
        return self._pool.num_blocks * self._pool.block_size

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    @property
    def usage(self) -> float:
        """The fraction of blocks in use."""
        return self._pool.usage

    # ------------------------------------------------------------------------------------------------- prefixes

    def begin_step(self) -> None:
        self._hashes_left = HASHED_BLOCKS

    def match_prefix(self, request: Request) -> Hit | None:
        """The longest known prefix. Never the whole prompt: its last token has to be computed.

        Returns None if this step's hashing budget runs out first; the hashes are kept, and the next step goes on.
        """
        if not self._shares or request.needs_whole_prompt:
            return Hit([])
        wanted = (request.num_tokens - 1) // self._pool.block_size
        while True:
            named = min(len(request.block_hashes), wanted)
            found = self._pool.find(request.block_hashes[:named])
            # Pages are hashed as far as they are found, in growing batches. Where there are states the whole prompt is
            # hashed, because forks are found by comparing hashes.
            if named == wanted or (len(found) < named and self._snapshots is None):
                return self._hit(request, found)
            if not self._hashes_left:
                return None
            count = min(max(named, 1), wanted - named, self._hashes_left)
            self._hashes_left -= count
            self._name_blocks(request, named + count)

    def _hit(self, request: Request, found: list[int]) -> Hit:
        if self._snapshots is None:
            return Hit(found)
        for count in range(len(found), 0, -1):
            if self._snapshots.find(request.block_hashes[count - 1]) is not None:
                return Hit(found[:count], request.block_hashes[count - 1], len(found))
        return Hit([], None, len(found))

    def being_computed(self, running: Iterable[Request]) -> dict[bytes, int]:
        """Hashes of the blocks that prefills are computing, each with the best priority among those prefills."""
        coming: dict[bytes, int] = {}
        if self._shares and self._snapshots is None:
            for request in running:
                self.add_computed(coming, request)
        return coming

    def add_computed(self, coming: dict[bytes, int], request: Request) -> None:
        """Add what `request` computes next to the result of `being_computed`."""
        if self._shares and self._snapshots is None and (name := self._next_name(request)) is not None:
            coming[name] = min(request.priority, coming.get(name, request.priority))

    def is_coming(self, request: Request, hit: Hit, coming: dict[bytes, int], running: Sequence[Request]) -> bool:
        """Whether a running request of no lower priority computes what `request` would have to compute next."""
        if not self._shares or request.needs_whole_prompt:
            return False
        if self._snapshots is None:
            lacks = request.block_hashes[len(hit.blocks) : len(hit.blocks) + 1]
            return bool(lacks) and coming.get(lacks[0], request.priority + 1) <= request.priority
        known = len(hit.blocks)
        return any(
            other.priority <= request.priority and self._leaves_a_copy(other, request, known) for other in running
        )

    def _leaves_a_copy(self, other: Request, request: Request, known: int) -> bool:
        """Whether `other` makes a copy where `request` forks off; it is made to, if it has not passed there."""
        size = self._pool.block_size
        own, names = request.block_hashes, other.block_hashes
        longest = min(len(own), len(names), (request.num_tokens - 1) // size)
        # A hash stands for all tokens before it, so that equality ends once and for all.
        border = size * bisect_left(range(longest), True, key=lambda index: own[index] != names[index])
        if border - known * size < self._grid:
            return False
        if border in other.saving or border in other.borders:
            return True
        if border <= other.num_computed_tokens or other.num_forks == MOST_FORKS:
            return False
        other.num_forks += 1
        other.borders = sorted([*other.borders, border])
        return True

    # ------------------------------------------------------------------------------------------- a sequence's own

    def allocate(self, request: Request, hit: Hit, reserve: int) -> bool:
        """Give `request`, which begins behind `hit`, room for all its known tokens; False, and nothing, if fewer than
        `reserve` blocks would be left."""
        needed = self._blocks_of(request.num_tokens) - len(hit.blocks)
        if needed + self._pool.num_idle(hit.blocks) + reserve > self._pool.num_free:
            return False
        self._pool.share(hit.blocks)
        fresh = self._pool.allocate(needed)
        assert fresh is not None
        request.block_ids = hit.blocks + fresh
        request.num_computed_tokens = len(hit.blocks) * self._pool.block_size
        request.num_published_blocks = len(hit.blocks)
        if self._snapshots is not None:
            request.loads = FRESH if hit.state is None else self._snapshots.pin(hit.state)
            request.last_copy, request.num_forks = hit.state or b"", 0
            request.borders = list(self._borders_of(request, hit)) if self._shares else []
        return True

    def _borders_of(self, request: Request, hit: Hit) -> Iterator[int]:
        """Where copies are made of the state while the prompt is computed."""
        size = self._pool.block_size
        known, fork, last = (count * size for count in (len(hit.blocks), hit.reach, (request.num_tokens - 1) // size))
        self._name_blocks(request, last // size)
        if fork - known >= self._grid and fork < last:
            yield fork
        if last > known:
            yield last

    def grow(self, request: Request) -> bool:
        """Ensure room for one more token; False if no block is free."""
        if request.num_computed_tokens < len(request.block_ids) * self._pool.block_size:
            return True
        fresh = self._pool.allocate(1)
        if fresh is None:
            return False
        request.block_ids.extend(fresh)
        return True

    def grow_for_drafts(self, request: Request, count: int, reserve: int) -> int:
        """Make room behind its next token for `count` drafts, or as many as there is room for: it never takes the last
        `reserve` free blocks."""
        wanted = self._blocks_of(request.num_computed_tokens + 1 + count) - len(request.block_ids)
        fresh = self._pool.allocate(min(wanted, self._pool.num_free - reserve)) if wanted > 0 else None
        request.block_ids.extend(fresh or ())
        room = len(request.block_ids) * self._pool.block_size - request.num_computed_tokens - 1
        return min(count, room)

    def most_tokens(self, request: Request) -> int:
        """How many tokens its next step may compute: a step ends at a border where the state is to be copied."""
        border = request.borders[0] if request.borders else request.num_computed_tokens + request.num_pending_tokens
        return min(request.num_pending_tokens, border - request.num_computed_tokens)

    def take_row(self, request: Request, end: int) -> int | None:
        """The row into which the state is copied once `end` tokens are computed; None if it is not, or none is left."""
        if self._snapshots is None or not self._shares:
            return None
        writes = end > len(request.prompt_token_ids) and end % self._grid == 0
        if not writes and not (request.borders and request.borders[0] == end):
            return None
        row = self._snapshots.take()
        if row is not None:
            request.saving[end] = row
        return row

    def launched(self, request: Request) -> None:
        """A step of it was launched, up to `num_computed_tokens`."""
        while request.borders and request.borders[0] <= request.num_computed_tokens:
            del request.borders[0]
        self._let_go(request)

    def commit(self, request: Request, start: int, end: int) -> None:
        """Publish what a step that was read has computed: the blocks that tokens `start` to `end` filled, and the copy
        of the state behind them."""
        if not self._shares:
            return
        size = self._pool.block_size
        full = end // size
        self._name_blocks(request, full)
        for index in range(start // size, full):
            self._pool.remember(request.block_ids[index], request.block_hashes[index])
        request.num_published_blocks = full
        row = request.saving.pop(end, None)
        if row is not None and self._snapshots is not None:
            name, length = request.block_hashes[full - 1], len(request.prompt_token_ids)
            self._snapshots.publish(row, name, lasts=end <= (length - 1) // size * size - size)
            self._snapshots.pass_by(request.last_copy)
            request.last_copy = name

    def free(self, request: Request) -> None:
        """Take back what `request` holds; what is published stays until it is evicted."""
        self._pool.release(request.block_ids)
        request.block_ids = []
        request.num_computed_tokens = 0
        self._let_go(request)
        if self._snapshots is not None:
            for row in request.saving.values():
                self._snapshots.give_back(row)
        request.borders, request.saving = [], {}

    def forget(self, blocks: Iterable[int], requests: Iterable[Request]) -> None:
        """Let nobody find `blocks`, nor a state behind any prefix of `requests`, be it shared or not: their content may
        be invalid, and nothing says since when."""
        self._pool.forget(blocks)
        if self._snapshots is not None:
            for request in requests:
                self._snapshots.forget(request.block_hashes)

    def _let_go(self, request: Request) -> None:
        """It no longer needs the row that it was to begin from."""
        if self._snapshots is not None and request.loads is not None and request.loads != FRESH:
            self._snapshots.unpin(request.loads)
        request.loads = None

    def check_books(self, running: Sequence[Request]) -> None:
        """Assert that what requests hold and what is counted agree. For tests, and for `INGOT_CHECK_BOOKS`."""
        self._pool.check_books([request.block_ids for request in running])
        for request in running:
            assert request.num_computed_tokens <= len(request.block_ids) * self._pool.block_size
        if self._snapshots is not None:
            self._snapshots.check_books(
                [row for request in running for row in request.saving.values()],
                [row for request in running if (row := request.loads) is not None and row != FRESH],
            )

    # ---------------------------------------------------------------------------------------------------- names

    def _blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self._pool.block_size)

    def _next_name(self, request: Request) -> bytes | None:
        """The hash of the block that a prefill publishes next; None if it will not publish one."""
        at, size = request.num_published_blocks, self._pool.block_size
        end = (at + 1) * size
        launched = end <= request.num_computed_tokens
        if end > request.num_tokens or not (launched or request.num_pending_tokens > 1):
            return None
        self._name_blocks(request, at + 1)
        return request.block_hashes[at]

    def _name_blocks(self, request: Request, count: int) -> None:
        size = self._pool.block_size
        names = request.block_hashes
        for index in range(len(names), count):
            parent = names[-1] if names else root_hash(request.cache_salt)
            names.append(block_hash(parent, request.tokens(index * size, (index + 1) * size)))
