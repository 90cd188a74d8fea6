"""The blocks of the paged cache: which are free, which are shared, and which still hold a known prefix. No torch.

A block that is full of computed tokens can be found again by the hash of those tokens and all before them. When its
last user lets go of it, it becomes free but keeps its content until it is the least recently used of the free blocks
and somebody needs it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence


def root_hash(cache_salt: str) -> bytes:
    """What stands in for the block before the first: `b""` without a salt. Prompts of two salts share no name."""
    if not cache_salt:
        return b""
    return hashlib.blake2b(cache_salt.encode(), digest_size=16, person=b"cache salt").digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of a full block: a hash of its tokens and of the block before it (`root_hash` for the first).

    Collision-resistant, since two requests of different people may meet in the cache.
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
        """The share of blocks in use, 0 to 1."""
        return 1 - self.num_free / self.num_blocks

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks, forgetting what they held; None, and nothing taken, if there are not as many."""
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
        """The blocks that hold the longest known prefix of `hashes`; they are not taken yet."""
        found = []
        for name in hashes:
            block = self._by_hash.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free at present: sharing those uses up free blocks, sharing the others does not."""
        return sum(self._users[block] == 0 for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Become one more user of each of `blocks`, as returned by `find`."""
        for block in blocks:
            if self._users[block] == 0:
                del self._free[block]
            self._users[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of `blocks`. Those at the end are reused first: the start of a prompt is worth more than its end."""
        for block in reversed(blocks):
            assert self._users[block] > 0, f"block {block} is released twice"
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)  # holds nothing worth keeping

    def remember(self, block: int, name: bytes) -> None:
        """`block` is full and computed, and holds what `name` stands for. The first block of a name keeps it."""
        assert self._users[block] > 0
        if name not in self._by_hash and block not in self._hash_of:
            self._by_hash[name] = block
            self._hash_of[block] = name

    def forget(self, blocks: Iterable[int]) -> None:
        """The content of `blocks` may be damaged: never find them again."""
        for block in blocks:
            self._forget(block)

    def check_books(self, held: Iterable[Sequence[int]]) -> None:
        """Every block is either free or used by as many sequences of `held` as its count says."""
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
