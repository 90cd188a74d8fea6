"""How the native engine's cache is divided into pools of blocks: one of layers that keep every token, and one for each
length of window. Each pool has blocks of its own, so that what one is given the others lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from appliance.checkpoint.memory.cache_shape import CacheShape


class Pool(msgspec.Struct, frozen=True):
    """`window` None: of layers that keep every token."""

    window: int | None
    num_blocks: int
    block_bytes: int


class Need(NamedTuple):
    """What a pool is to hold. `least` blocks are one sequence and a spare block; more than `most` are of no use."""

    window: int | None
    block_bytes: int
    least: int
    most: int


def needs(
    shape: CacheShape, length: int, *, block_size: int, chunk: int, sequences: int, spare: int, remembers: bool
) -> list[Need]:
    """For sequences of up to `length` tokens, of which `chunk` are computed in a step; in the order of
    `cache_specs.pool_windows`. Behind a window a pool is filled by two steps in flight and by a window of each
    sequence, or of two for each if it `remembers` those that have ended."""

    def blocks(tokens: int) -> int:
        return -(-tokens // block_size)

    whole = blocks(length)
    windows = [part for part in shape.windows if part.window < length]
    of_all = shape.most_bytes_per_token - sum(part.bytes_per_token for part in windows)
    found = []
    if of_all or not windows:
        found.append(Need(None, max(of_all * block_size, 1), whole + spare, sequences * whole + spare))
    for part in sorted(windows, key=lambda part: -part.window):
        alone = min(whole, blocks(part.window - 1 + chunk) + 1)
        together = sequences * (1 + remembers) * held_blocks(part.window, block_size) + 2 * blocks(chunk)
        most = max(min(sequences * whole, together), alone)
        found.append(Need(part.window, part.bytes_per_token * block_size, alone + spare, most + spare))
    return found


def held_blocks(window: int, block_size: int) -> int:
    """Of a sequence among others: its window wherever in a block it begins, and a block that it grows into."""
    return -(-window // block_size) + 2


def divided(room: int, wanted: Sequence[Need], *, capped: bool) -> tuple[Pool, ...]:
    """`room` bytes in blocks: each pool has what it needs at least, be there room or not; then windows get what they
    have a use for, up to half of all, and the rest is of layers that keep every token. Not `capped`: what is left goes
    to the first pool, though it has no use for it."""
    counts = [need.least for need in wanted]
    left = room - sum(need.least * need.block_bytes for need in wanted)

    def give(places: Sequence[int], most: int) -> None:
        """So many bytes, shared as they are of use."""
        nonlocal left
        useful = [(wanted[place].most - counts[place]) * wanted[place].block_bytes for place in places]
        for place, size in zip(places, useful, strict=True):
            share = min(size, size * max(most, 0) // max(sum(useful), 1))
            more = share // wanted[place].block_bytes
            counts[place] += more
            left -= more * wanted[place].block_bytes

    windows = [place for place, need in enumerate(wanted) if need.window is not None]
    others = [place for place, need in enumerate(wanted) if need.window is None]
    taken = sum(counts[place] * wanted[place].block_bytes for place in windows)
    give(windows, min(left, room // 2 - taken) if others else left)
    give(others, left)
    give(windows, left)
    if not capped and left > 0:
        counts[0] += left // wanted[0].block_bytes
    return tuple(Pool(need.window, count, need.block_bytes) for need, count in zip(wanted, counts, strict=True))


def most_sequences(pools: Sequence[Pool], length: int, *, block_size: int, chunk: int, spare: int) -> int:
    """How many sequences of `length` tokens run at a time, while one of them is computed `chunk` tokens a step."""
    whole = -(-length // block_size)

    def of(pool: Pool) -> int:
        room, held, alone = pool.num_blocks - spare, whole, whole
        if pool.window is not None:
            of_window = held_blocks(pool.window, block_size)
            held, alone = min(whole, of_window), min(whole, of_window - 1)
        behind = min(whole - held, -(-chunk // block_size))
        return max((room - behind) // held, int(room >= alone))  # alone in smaller chunks, if need be

    return min(map(of, pools))
