"""One uniform number per request and position, the same on every device and in every batch."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on `seed` (64 bits) and `position` alone.

    SplitMix64 (Steele, Lea and Flood, 2014) over the two, counter-based: no state is kept, so a request that is
    preempted, or runs beside others, samples with the numbers that it would have had alone.
    """
    mixed = _mix((_mix(seed & _MASK) + (position + 1) * 0x9E3779B97F4A7C15) & _MASK)
    return (mixed >> 40) / (1 << 24)  # 24 bits are what a float32 holds exactly


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
