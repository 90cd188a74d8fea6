"""What the attention of a step works in, over all ops that it takes. It is for the memory plan; it imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kernels.compressed_attention import workspace as compressed
from kernels.context import Context
from kernels.indexer import workspace as indexer
from kernels.mla_attention import workspace as latent
from kernels.paged_attention import workspace as paged
from kernels.paged_attention.workspace import Step
from kernels.sparse_mla import workspace as sparse

Tensors = tuple[tuple[int, ...], ...]
WORKSPACES: Final[Mapping[str, Callable[[str, Context, Step], Tensors]]] = {
    "paged_attention": paged.workspace_tensors,
    "mla_attention": latent.workspace_tensors,
    "indexer": indexer.workspace_tensors,
    "sparse_mla": sparse.workspace_tensors,
    "compressed_attention": compressed.workspace_tensors,
}


def workspace_tensors(backends: Mapping[str, str], context: Context, step: Step) -> Tensors:
    """Tensor by tensor, for each moment that may be the peak. `backends` names the chosen one of each op; others than
    of attention do not matter."""
    found = (tensors(backends[op], context, step) for op, tensors in WORKSPACES.items() if op in backends)
    return tuple(moment for moments in found for moment in moments)
