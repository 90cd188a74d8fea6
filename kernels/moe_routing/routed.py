"""What routing gives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kernels.fused_moe.by_expert import Sorted


class Routed(NamedTuple):
    """Where tokens go: `weights` [T, k] float32 and `expert_ids` [T, k] int32, best first. `by_expert` are the same
    pairs sorted for `fused_moe`, where a backend has done that in passing."""

    weights: Tensor
    expert_ids: Tensor
    by_expert: Sorted | None = None
