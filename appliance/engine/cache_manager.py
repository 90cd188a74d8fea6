"""What sequences hold of the caches, and what of it they share. Plain data: no torch.

Two stores serve all layers. Layers with an entry for each token have *pages*: blocks of one grid, of which layers with
the same window share a pool (`BlockPool`), and those without one another. Recurrent layers have *rows* of states: a
sequence's is that of its slot, and more hold copies (`Snapshots`). A prefix can be continued from a border between
blocks at which there is all of it that the next token needs: the pages of every block before, or in pools with a window
those of the last window, and a copy of the state. What is published was computed from tokens that are known, and was
read.

A sequence gives pages back as soon as they are behind the window of all tokens to come. So of a pool with a window it
holds that, and what the steps in flight compute, however long it is.

Copies are made at three kinds of border: the last one before a prompt's end, one where another prompt forks off, and
every `TURN_GRID` tokens while an answer is written, so that the next turn finds its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from appliance.engine.block_pool import BlockPool, block_hash, root_hash
from appliance.engine.request import Pages, Request
from appliance.engine.snapshots import FRESH, Snapshots

# At most this many blocks of waiting prompts are hashed per step for prefix-cache lookups: about 5 ms.
HASHED_BLOCKS: Final = 1024
# Tokens between copies of a state while a turn is written, rounded to blocks; also the least that another copy must
# save to be worth a step that ends at its border.
TURN_GRID: Final = 32
# Copies that a prefill makes for prompts that fork off while it runs: each ends a step, which others wait for as well.
MOST_FORKS: Final = 4


class Hit(NamedTuple):
    """What is known of a prompt: its first `num_blocks` blocks. `blocks` are those of them, in each pool, that the next
    token sees; where the model has states, a copy of that behind them has the hash `state`, and `reach` blocks would be
    known if there were a copy there."""

    num_blocks: int = 0
    blocks: tuple[list[int], ...] = ()
    state: bytes | None = None
    reach: int = 0


class CacheManager:
    """Owns the blocks and the copies of states. `pools` have blocks of one size; one without a window comes first.
    `snapshots` is None for a model without states."""

    def __init__(self, *pools: BlockPool, prefix_caching: bool = True, snapshots: Snapshots | None = None) -> None:
        assert len({pool.block_size for pool in pools}) == 1
        assert all(pool.window is not None for pool in pools[1:]), "pages of every token are all in one pool"
        self._pools = pools
        self._block_size = pools[0].block_size
        self._snapshots = snapshots
        self._shares = prefix_caching and (snapshots is None or snapshots.count > 0)
        self._hashes_left = 0
        self._grid = self._block_size * max(TURN_GRID // self._block_size, 1)

    def holds(self, length: int) -> bool:
        """Whether a sequence of `length` tokens can be computed, a few of them at a time if need be."""
        return all(pool.num_blocks >= pool.most_held(length, chunk=2) for pool in self._pools)

    @property
    def num_free_blocks(self) -> int:
        """Of the pool that has the fewest."""
        return min(pool.num_free for pool in self._pools)

    @property
    def usage(self) -> float:
        """The fraction of blocks in use, of the fullest pool."""
        return max(pool.usage for pool in self._pools)

    # ------------------------------------------------------------------------------------------------- prefixes

    def begin_step(self) -> None:
        self._hashes_left = HASHED_BLOCKS

    def match_prefix(self, request: Request) -> Hit | None:
        """The longest known prefix. Never the whole prompt: its last token has to be computed.

        Returns None if this step's hashing budget runs out first; the hashes are kept, and the next step goes on.
        """
        if not self._shares or request.needs_whole_prompt:
            return self._hit_at(request, 0)
        wanted = (request.num_tokens - 1) // self._block_size
        first = self._pools[0]
        # Pages of every token are hashed as far as they are found, in growing batches. Else the whole prompt is: forks
        # from states are found by comparing hashes, and a window's pages without those before them.
        every = self._snapshots is not None or first.window is not None
        while True:
            named = min(len(request.block_hashes), wanted)
            found = first.find(request.block_hashes[:named]) if first.window is None else None
            known = named if found is None else len(found)
            if named == wanted or (known < named and not every):
                return self._hit(request, known, found)
            if not self._hashes_left:
                return None
            count = min(max(named, 1), wanted - named, self._hashes_left)
            self._hashes_left -= count
            self._name_blocks(request, named + count)

    def _hit(self, request: Request, known: int, found: list[int] | None) -> Hit:
        """At the deepest border, of at most `known` blocks, behind which there is all that the next token needs.
        `found` are the pages of all these blocks in a pool without a window."""
        reach = count = self._border(request, known)
        if self._snapshots is not None:
            while count and self._snapshots.find(request.block_hashes[count - 1]) is None:
                count = self._border(request, count - 1)
        return self._hit_at(request, count, reach, found)

    def _border(self, request: Request, most: int) -> int:
        """The deepest one, of at most `most` blocks, at which every pool with a window has the pages of it."""
        windowed = [pool for pool in self._pools if pool.window is not None]
        count, before = most, -1
        while count != before:
            before = count
            for pool in windowed:
                count = pool.deepest_border(request.block_hashes, count)
        return count

    def _hit_at(self, request: Request, count: int, reach: int = 0, found: list[int] | None = None) -> Hit:
        names, position = request.block_hashes, count * self._block_size
        blocks = [pool.find(names[pool.first_seen(position) : count]) for pool in self._pools[found is not None :]]
        if found is not None:
            blocks.insert(0, found[:count])
        return Hit(count, tuple(blocks), names[count - 1] if count and self._snapshots is not None else None, reach)

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
            lacks = request.block_hashes[hit.num_blocks : hit.num_blocks + 1]
            return bool(lacks) and coming.get(lacks[0], request.priority + 1) <= request.priority
        return any(
            other.priority <= request.priority and self._leaves_a_copy(other, request, hit.num_blocks)
            for other in running
        )

    def _leaves_a_copy(self, other: Request, request: Request, known: int) -> bool:
        """Whether `other` makes a copy where `request` forks off; it is made to, if it has not passed there."""
        size = self._block_size
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

    def allocate(self, request: Request, hit: Hit, running: Sequence[Request], chunk: int) -> bool:
        """Give `request`, which begins behind `hit`, room for all its known tokens, or for a window of them. False, and
        nothing, if less than a block would be left for each of those `running`, or less than what the next `chunk`
        tokens of prompts take behind a window."""
        ends = [self._end_at_first(pool, request, hit) for pool in self._pools]
        for pool, known, end in zip(self._pools, hit.blocks, ends, strict=True):
            needed = end - hit.num_blocks + pool.num_idle(known) + len(running)
            if needed + self._behind_windows(pool, request, end, running, chunk) > pool.num_free:
                return False
        request.pages = []
        for pool, known, end in zip(self._pools, hit.blocks, ends, strict=True):
            pool.share(known)
            fresh = pool.allocate(end - hit.num_blocks)
            assert fresh is not None
            request.pages.append(Pages(hit.num_blocks - len(known), known + fresh))
        request.num_computed_tokens = hit.num_blocks * self._block_size
        request.num_published_blocks = hit.num_blocks
        if self._snapshots is not None:
            request.loads = FRESH if hit.state is None else self._snapshots.pin(hit.state)
            request.last_copy, request.num_forks = hit.state or b"", 0
            request.borders = list(self._borders_of(request, hit)) if self._shares else []
        return True

    def _end_at_first(self, pool: BlockPool, request: Request, hit: Hit) -> int:
        """The block behind those that it gets when it is admitted behind `hit`."""
        first = pool.first_seen(hit.num_blocks * self._block_size)
        return min(pool.blocks_of(request.num_tokens), first + pool.most_held(request.num_tokens, chunk=1))

    def _behind_windows(
        self, pool: BlockPool, request: Request, end: int, running: Sequence[Request], chunk: int
    ) -> int:
        """The blocks that a step's tokens of prompts take of `pool`, beyond what is allocated already: all prompts
        together get `chunk` tokens of a step."""
        if pool.window is None:
            return 0
        place = self._pools.index(pool)
        to_come = pool.blocks_of(request.num_tokens) - end
        most = max((pool.blocks_of(one.num_tokens) - one.pages[place].end for one in running), default=0)
        return min(max(to_come, most, 0), pool.blocks_of(chunk), _chunk_blocks(pool, request))

    def _borders_of(self, request: Request, hit: Hit) -> Iterator[int]:
        """Where copies are made of the state while the prompt is computed."""
        size = self._block_size
        known, fork, last = (count * size for count in (hit.num_blocks, hit.reach, (request.num_tokens - 1) // size))
        self._name_blocks(request, last // size)
        if fork - known >= self._grid and fork < last:
            yield fork
        if last > known:
            yield last

    def grow(self, request: Request, count: int) -> int:
        """Make room for its next `count` tokens, or for as many of them as there is room for; returns that."""
        return self._grow(request, count, reserve=0)

    def grow_for_drafts(self, request: Request, count: int, reserve: int) -> int:
        """Make room behind its next token for `count` drafts, or as many as there is room for: it never takes the last
        `reserve` free blocks."""
        return max(self._grow(request, 1 + count, reserve) - 1, 0)

    def _grow(self, request: Request, count: int, reserve: int) -> int:
        for pool, pages in zip(self._pools, request.pages, strict=True):
            wanted = pool.blocks_of(request.num_computed_tokens + count) - pages.end
            if wanted > 0:
                pages.ids += pool.allocate(max(min(wanted, pool.num_free - reserve), 0)) or ()
            count = min(count, pages.end * self._block_size - request.num_computed_tokens)
        return count

    def most_tokens(self, request: Request) -> int:
        """How many tokens its next step may compute: a step ends at a border where the state is to be copied. And of
        what a window leaves of its pool a step takes half, so that one can be laid out while another is in flight."""
        border = request.borders[0] if request.borders else request.num_computed_tokens + request.num_pending_tokens
        most = min(request.num_pending_tokens, border - request.num_computed_tokens)
        for pool in self._pools:
            if pool.window is not None:
                most = min(most, max(_chunk_blocks(pool, request) * self._block_size, 1))
        return most

    def most_drafts(self, request: Request, wanted: int) -> int:
        """How many of those that are wanted may follow the token that it decodes: the last one before a border at which
        its state is copied must be a known token of its step, since states take drafts a step later."""
        if self._snapshots is None or not self._shares:
            return wanted
        return min(wanted, -(request.num_computed_tokens + 2) % self._grid)

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
        """A step that was read has computed tokens `start` to `end`. Publish the blocks that they filled, and the copy
        of the state behind them; let go of what no later token sees."""
        if self._shares:
            self._publish(request, start, end)
        for pool, pages in zip(self._pools, request.pages, strict=True):
            behind = range(pages.first, pool.first_seen(end))
            if behind:
                kept = self._window_of_prompt(pool, request)
                left = dict(zip(behind, pages.ids, strict=False))
                pool.release([block for index, block in left.items() if index in kept])
                pool.release([block for index, block in left.items() if index not in kept], behind=True)
                del pages.ids[: len(behind)]
                pages.first += len(behind)

    def _window_of_prompt(self, pool: BlockPool, request: Request) -> range:
        """The blocks from which the same prompt, or one with another end, goes on at the last border."""
        last = (len(request.prompt_token_ids) - 1) // self._block_size
        return range(pool.first_seen(last * self._block_size), last)

    def _publish(self, request: Request, start: int, end: int) -> None:
        size = self._block_size
        full = end // size
        self._name_blocks(request, full)
        for pool, pages in zip(self._pools, request.pages, strict=True):
            for block in range(start // size, full):
                pool.remember(pages.ids[block - pages.first], request.block_hashes[block])
        request.num_published_blocks = full
        row = request.saving.pop(end, None)
        if row is not None and self._snapshots is not None:
            name, length = request.block_hashes[full - 1], len(request.prompt_token_ids)
            self._snapshots.publish(row, name, lasts=end <= (length - 1) // size * size - size)
            self._snapshots.pass_by(request.last_copy)
            request.last_copy = name

    def free(self, request: Request) -> None:
        """Take back what `request` holds; what is published stays until it is evicted."""
        for pool, pages in zip(self._pools, request.pages, strict=False):  # none while it waits
            pool.release(pages.ids)
        request.pages = []
        request.num_computed_tokens = request.num_replayed = 0
        self._let_go(request)
        if self._snapshots is not None:
            for row in request.saving.values():
                self._snapshots.give_back(row)
        request.borders, request.saving = [], {}

    def forget(self, held: Iterable[tuple[int, int]], requests: Iterable[Request]) -> None:
        """Let nobody find these blocks, each with the number of its pool, nor what `requests` have left behind of
        theirs, nor a state behind any prefix of theirs: their content may be invalid, and nothing says since when."""
        for place, block in held:
            self._pools[place].forget([block])
        for request in requests:
            for pool in self._pools:
                if pool.window is not None:
                    pool.forget_idle(request.block_hashes)
            if self._snapshots is not None:
                self._snapshots.forget(request.block_hashes)

    def _let_go(self, request: Request) -> None:
        """It no longer needs the row that it was to begin from."""
        if self._snapshots is not None and request.loads is not None and request.loads != FRESH:
            self._snapshots.unpin(request.loads)
        request.loads = None

    def check_books(self, running: Sequence[Request]) -> None:
        """Assert that what requests hold and what is counted agree. For tests, and for `INGOT_CHECK_BOOKS`."""
        for place, pool in enumerate(self._pools):
            pool.check_books([request.pages[place].ids for request in running])
            for request in running:
                pages, computed = request.pages[place], request.num_computed_tokens
                assert computed <= pages.end * self._block_size, "tokens were computed without room"
                assert pages.first <= pool.first_seen(computed), "the next token sees a block that was let go"
        if self._snapshots is not None:
            self._snapshots.check_books(
                [row for request in running for row in request.saving.values()],
                [row for request in running if (row := request.loads) is not None and row != FRESH],
            )

    # ---------------------------------------------------------------------------------------------------- names

    def _next_name(self, request: Request) -> bytes | None:
        """The hash of the block that a prefill publishes next; None if it will not publish one."""
        at, size = request.num_published_blocks, self._block_size
        end = (at + 1) * size
        launched = end <= request.num_computed_tokens
        if end > request.num_tokens or not (launched or request.num_pending_tokens > 1):
            return None
        self._name_blocks(request, at + 1)
        return request.block_hashes[at]

    def _name_blocks(self, request: Request, count: int) -> None:
        size = self._block_size
        names = request.block_hashes
        for index in range(len(names), count):
            parent = names[-1] if names else root_hash(request.cache_salt)
            names.append(block_hash(parent, request.tokens(index * size, (index + 1) * size)))


def _chunk_blocks(pool: BlockPool, request: Request) -> int:
    """How many blocks the tokens of one step may take: two steps are in flight at a time."""
    return (pool.num_blocks - pool.most_held(request.num_tokens, chunk=0)) // 2
