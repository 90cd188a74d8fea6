"""Bookkeeping for the blocks of the paged KV cache: free, shared, or cached for prefix reuse. No torch.

A full, computed block can be looked up by the hash of its tokens and all tokens before them. When its last user
releases it, the block is free but keeps its content until it is evicted, least recently used first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence


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
    """Allocates `num_blocks` blocks of `block_size` tokens."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0
        assert block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._users = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # least recently used first
        self._by_hash: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """The fraction of blocks in use."""
        return 1 - self.num_free / self.num_blocks

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` free blocks and evict their content. Returns None, and takes none, if too few are free."""
        if count > self.num_free:
            return None
        taken = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
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

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free, so that sharing them would reduce `num_free`."""
        return sum(self._users[block] == 0 for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Add a user to each of `blocks`, as returned by `find`."""
        for block in blocks:
            if self._users[block] == 0:
                del self._free[block]
            self._users[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Remove a user from each of `blocks`. The last blocks are evicted first, because the start of a prompt is more
        likely to be reused than its end."""
        for block in reversed(blocks):
            assert self._users[block] > 0, f"block {block} is released twice"
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)  # nothing cached in it

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

    def check_books(self, held: Iterable[Sequence[int]]) -> None:
        """Assert that every block is free, or used by exactly as many sequences in `held` as counted."""
        users = [0] * self.num_blocks
        for blocks in held:
            for block in blocks:
                users[block] += 1
        assert users == self._users, "the counts of users do not match the sequences"
        assert set(self._free) == {b for b in range(self.num_blocks) if users[b] == 0}, "the free list is wrong"
        assert {self._by_hash[name] for name in self._by_hash} == set(self._hash_of), "the two indexes differ"

    def _forget(self, block: int) -> None:
        name = self._hash_of.pop(block, None)
        if name is not None:
            del self._by_hash[name]
