"""On how many threads the processes of a model compute on the host."""

from __future__ import annotations

import os

import torch

from appliance.hardware.cgroup import read_cgroup, whole_cores
from kernels.cpu.library import use_threads


def share_cores(ranks: int = 1) -> None:
    """For one of so many processes that share the cores which this container may use.

    Torch leaves one to the front door: each of its threads waits for all others, and one that the front door holds up
    would hold up all. Our own take what there is to do, and a thread that gets no core holds up nothing.
    """
    cores = whole_cores(len(os.sched_getaffinity(0)), read_cgroup().cpu_quota)
    torch.set_num_threads(max((cores - 1) // ranks, 1))
    use_threads(max(cores // ranks, 1))
