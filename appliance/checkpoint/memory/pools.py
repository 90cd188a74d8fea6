"""How the native engine's cache is divided into pools of blocks: one of layers that keep every token, and one for each
length of window. Each pool has blocks of its own, so that what one is given the others lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from appliance.checkpoint.memory.cache_shape import CacheShape

ASIDE: Final = 8
"""The chunk that is computed behind a window is set aside in up to this part of the memory. In a small cache it would
take most, and is better cut."""


class Pool(msgspec.Struct, frozen=True):
    """`window` None: of layers that keep every token."""

    window: int | None
    num_blocks: int
    block_bytes: int


class Need(NamedTuple):
    """What a pool is to hold. `least` blocks are one sequence and a spare block; more than `most` are of no use. Of a
    sequence that is just as long as the pool sees `held` blocks are in it, and `sequence_bytes` in the whole cache;
    there may be `sequences` of them, and while one is computed the pool has `others` beside theirs."""

    window: int | None
    block_bytes: int
    least: int
    most: int
    held: int
    sequence_bytes: int
    sequences: int
    others: int


def needs(
    shape: CacheShape, length: int, *, block_size: int, chunk: int, sequences: int, spare: int, remembers: bool
) -> list[Need]:
    """For sequences of up to `length` tokens, of which `chunk` are computed in a step; in the order of
    `cache_specs.pool_windows`. Behind a window a pool is filled by two steps in flight and by a window of each
    sequence, or of two for each if it `remembers` those that have ended."""

    def blocks(tokens: int) -> int:
        return -(-tokens // block_size)

    windows = sorted((part for part in shape.windows if part.window < length), key=lambda part: -part.window)
    of_all = shape.most_bytes_per_token - sum(part.bytes_per_token for part in windows)

    def sequence_bytes(tokens: int) -> int:
        held = sum(min(blocks(tokens), held_blocks(part.window, block_size)) * part.bytes_per_token for part in windows)
        return max((blocks(tokens) * of_all + held) * block_size, 1)

    whole, kept, flying = blocks(length), sequences * (1 + remembers), 2 * blocks(chunk)
    found = []
    if of_all or not windows:
        least, most = whole + spare, sequences * whole + spare
        found.append(Need(None, max(of_all * block_size, 1), least, most, whole, sequence_bytes(length), kept, spare))
    for part in windows:
        alone, held = min(whole, blocks(part.window - 1 + chunk) + 1), held_blocks(part.window, block_size)
        most = max(min(sequences * whole, kept * held + flying), alone) + spare
        one = sequence_bytes(held * block_size)
        others = min(blocks(chunk), max(whole - held, 0)) + spare
        found.append(Need(part.window, part.bytes_per_token * block_size, alone + spare, most, held, one, kept, others))
    return found


def held_blocks(window: int, block_size: int) -> int:
    """Of a sequence among others: its window wherever in a block it begins, and a block that it grows into."""
    return -(-window // block_size) + 2


def divided(room: int, wanted: Sequence[Need], *, capped: bool) -> tuple[Pool, ...]:
    """`room` bytes in blocks. Each pool has what it needs at least, be there room or not. Its `others` are set aside,
    and what is left is shared out in proportion to what each pool is asked for at most: by sequences just as long as it
    sees, as many as a cache would hold that were divided for them alone, or as there may be.

    So at every length there runs the same share, or more, of the sequences that a cache divided for that length would
    hold: at least 1/n of them with n pools, unless what the pools need at least takes most of `room`, and nearly all
    where windows are small beside the context. What is of no use to one pool goes to the others. Not `capped`: what is
    left goes to the first pool, though it has no use for it."""
    wanted = [need._replace(others=min(need.others, room // (ASIDE * need.block_bytes))) for need in wanted]
    rest = max(room - sum(need.others * need.block_bytes for need in wanted), 0)
    asked = [
        min(need.most - need.others, need.sequences * need.held, rest * need.held // need.sequence_bytes)
        for need in wanted
    ]
    counts = _in_proportion(room, wanted, asked)
    left = room - sum(count * need.block_bytes for count, need in zip(counts, wanted, strict=True))
    useful = [(need.most - count) * need.block_bytes for count, need in zip(counts, wanted, strict=True)]
    to_share, total = max(left, 0), max(sum(useful), 1)
    for place, need in enumerate(wanted):
        more = min(useful[place], useful[place] * to_share // total) // need.block_bytes
        counts[place] += more
        left -= more * need.block_bytes
    if not capped and left > 0:
        counts[0] += left // wanted[0].block_bytes
    return tuple(Pool(need.window, count, need.block_bytes) for need, count in zip(wanted, counts, strict=True))


def _in_proportion(room: int, wanted: Sequence[Need], asked: Sequence[int]) -> list[int]:
    """Blocks of each pool: the same share of what is `asked`, but no fewer than it needs, and no more than asked."""
    counts, sharing = [need.least for need in wanted], list(range(len(wanted)))
    while sharing:
        total = max(sum(asked[place] * wanted[place].block_bytes for place in sharing), 1)
        fixed = sum(
            (need.others if place in sharing else need.least) * need.block_bytes for place, need in enumerate(wanted)
        )
        rest = max(room - fixed, 0)
        shares = {place: wanted[place].others + asked[place] * rest // total for place in sharing}
        if all(shares[place] >= wanted[place].least for place in sharing):
            for place in sharing:
                counts[place] = max(min(asked[place] + wanted[place].others, shares[place]), wanted[place].least)
            break
        sharing = [place for place in sharing if shares[place] >= wanted[place].least]
    return counts


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
