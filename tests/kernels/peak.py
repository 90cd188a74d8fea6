"""The most that tensors made within the block take together, computed from their sizes alone: also on the meta device,
where nothing is allocated, so that a step of a large model can be measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):
    """`bytes` is the peak so far. What was there before does not count, nor what is laid over it."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        for storage in _storages(result):
            if storage._cdata not in given:
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.bytes = max(self.bytes, sum(size for _, size in self._alive.values()))
        return result


def _storages(tree: Any) -> Iterator[UntypedStorage]:
    return (leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
