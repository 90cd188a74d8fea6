"""Bookkeeping for the blocks of the paged KV cache: free, shared, or cached for prefix reuse. No torch.

A full, computed block can be looked up by the hash of its tokens and all tokens before them. When its last user
releases it, the block is free but keeps its content until it is evicted, least recently used first. What a
sequence's window has left behind goes before these, unless several prompts went on from it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

# A block that so many prompts went on from is kept like any other when a sequence's window leaves it.
_LASTS: Final = 2


def root_hash(cache_salt: str) -> bytes:
    """The parent hash of a first block; `b""` without a salt. Prompts with different salts share no hash."""
    if not cache_salt:
        return b""
    return hashlib.blake2b(cache_salt.encode(), digest_size=16, person=b"cache salt").digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a full block: of its parent's hash (`root_hash` for the first block) and its tokens.

    Collision-resistant, because different users' requests share the cache.
    """
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


class BlockPool:
    """Allocates `num_blocks` blocks of `block_size` tokens, for layers that look at the last `window` tokens only, or
    at all of them where that is None."""

    def __init__(self, num_blocks: int, block_size: int, window: int | None = None) -> None:
        assert num_blocks > 0
        assert block_size > 0
        assert window is None or window > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.window = window
        self._users = [0] * num_blocks
        self._hits = [0] * num_blocks  # how many prompts went on from it
        self._free: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._first: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # free, and evicted before those
        self._by_hash: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        return len(self._free) + len(self._first)

    @property
    def usage(self) -> float:
        """The fraction of blocks in use."""
        return 1 - self.num_free / self.num_blocks

    def blocks_of(self, num_tokens: int) -> int:
        """How many blocks so many tokens fill or begin."""
        return -(-num_tokens // self.block_size)

    def first_seen(self, position: int) -> int:
        """The first block that the token at `position` sees, and with it every later token."""
        return 0 if self.window is None else max(position + 1 - self.window, 0) // self.block_size

    def most_held(self, length: int, chunk: int) -> int:
        """The most blocks of a sequence that is to have `length` tokens, while `chunk` of them are computed."""
        whole = self.blocks_of(length)
        return whole if self.window is None else min(whole, self.blocks_of(self.window - 1 + chunk) + 1)

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` free blocks and evict their content. Returns None, and takes none, if too few are free."""
        if count > self.num_free:
            return None
        taken = []
        for _ in range(count):
            block, _none = (self._first or self._free).popitem(last=False)
            self._forget(block)
            self._users[block] = 1
            taken.append(block)
        return taken

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest cached prefix of `hashes`. Does not take them; see `share`."""
        found = []
        for name in hashes:
            block = self._by_hash.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def deepest_border(self, hashes: Sequence[bytes], most: int) -> int:
        """The longest prefix of `hashes`, of at most `most` blocks, behind which all blocks are cached that the next
        token sees; 0 where only an empty one is."""
        count = most
        while count:
            seen = range(self.first_seen(count * self.block_size), count)
            missing = next((index for index in reversed(seen) if hashes[index] not in self._by_hash), None)
            if missing is None:
                break
            count = missing  # no longer prefix does without this block but by a window that begins behind it
        return count

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free, so that sharing them would reduce `num_free`."""
        return sum(self._users[block] == 0 for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Add a user to each of `blocks`, as returned by `find`."""
        for block in blocks:
            if self._users[block] == 0:
                del (self._free if block in self._free else self._first)[block]
            self._users[block] += 1
            self._hits[block] += 1

    def release(self, blocks: Sequence[int], *, behind: bool = False) -> None:
        """Remove a user from each of `blocks`. The last blocks are evicted first, because the start of a prompt is more
        likely to be reused than its end. `behind`: the user has gone on, and others will hardly go on from them."""
        for block in reversed(blocks):
            assert self._users[block] > 0, f"block {block} is released twice"
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block not in self._hash_of:
                self._first[block] = None
                self._first.move_to_end(block, last=False)  # nothing cached in it
            elif behind and self._hits[block] < _LASTS:
                self._first[block] = None
            else:
                self._free[block] = None

    def remember(self, block: int, name: bytes) -> None:
        """Make a full, computed block available to `find` under its hash. The first block with a hash keeps it."""
        assert self._users[block] > 0
        if name not in self._by_hash and block not in self._hash_of:
            self._by_hash[name] = block
            self._hash_of[block] = name

    def forget(self, blocks: Iterable[int]) -> None:
        """Remove `blocks` from the prefix cache, because their content may be invalid."""
        for block in blocks:
            self._forget(block)

    def forget_idle(self, names: Iterable[bytes]) -> None:
        """Remove the blocks of these hashes from the prefix cache, but those that somebody uses."""
        found = [block for name in names if (block := self._by_hash.get(name)) is not None]
        self.forget(block for block in found if not self._users[block])

    def check_books(self, held: Iterable[Sequence[int]]) -> None:
        """Assert that every block is free, or used by exactly as many sequences in `held` as counted."""
        users = [0] * self.num_blocks
        for blocks in held:
            for block in blocks:
                users[block] += 1
        assert users == self._users, "the counts of users do not match the sequences"
        free = sorted([*self._free, *self._first])
        assert free == [block for block in range(self.num_blocks) if not users[block]], "the free list is wrong"
        assert {self._by_hash[name] for name in self._by_hash} == set(self._hash_of), "the two indexes differ"

    def _forget(self, block: int) -> None:
        self._hits[block] = 0
        name = self._hash_of.pop(block, None)
        if name is not None:
            del self._by_hash[name]
