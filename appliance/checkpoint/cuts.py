"""How the tensors of a checkpoint are cut where several ranks share a model."""

from __future__ import annotations

from typing import Final, NamedTuple


class Part(NamedTuple):
    """`size` rows or columns in `units` that stay whole, such as heads. Of fewer units than ranks, neighbouring ranks
    have the same one. Without units they are cut into equal numbers, of which the last rank may have fewer."""

    size: int
    units: int = 0

    def of_rank(self, rank: int, ranks: int) -> range:
        if not self.units:
            share = -(-self.size // ranks)
            return range(min(rank * share, self.size), min((rank + 1) * share, self.size))
        each = self.size // self.units
        first = rank * self.units // ranks
        return range(first * each, max((rank + 1) * self.units // ranks, first + 1) * each)


class Cut(NamedTuple):
    """Along `dim`, in which `parts` lie one after the other, each of them by itself. Without parts the first rank has
    all and the others have zeros, so that a sum over the ranks counts it once."""

    dim: int
    parts: tuple[Part, ...] = ()

    def of_rank(self, rank: int, ranks: int) -> tuple[range, ...]:
        ranges, start = [], 0
        for part in self.parts:
            own = part.of_rank(rank, ranks)
            ranges.append(range(start + own.start, start + own.stop))
            start += part.size
        return tuple(ranges)


COUNTED_ONCE: Final = Cut(0)


def by_rows(*parts: tuple[int, int] | tuple[int]) -> Cut:
    """Each rank computes some of the outputs."""
    return Cut(0, tuple(Part(*part) for part in parts))


def by_columns(size: int, units: int = 0) -> Cut:
    """Each rank takes some of the inputs: what it computes is a part of a sum."""
    return Cut(1, (Part(size, units),))
