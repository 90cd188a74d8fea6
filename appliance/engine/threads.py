"""How many threads compute on the CPU."""

from __future__ import annotations

import os


def compute_threads(ranks: int = 1) -> int:
    """For each of `ranks` processes that share the processors. One processor is left to the front door: a compute
    thread that waits for it would delay all the others. Of two, both compute, as the front door takes a tenth of one
    and a step of one thread leaves the other idle."""
    processors = len(os.sched_getaffinity(0))
    return max(max(processors - 1, min(processors, 2)) // ranks, 1)
