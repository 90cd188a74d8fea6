"""Fill a model's parameters from safetensors files, in the order in which the bytes lie on the disk."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from appliance.checkpoint.layout import IGNORED_SUFFIXES, SCALE
from appliance.checkpoint.quantization import BLOCK
from appliance.checkpoint.safetensors import TensorEntry, TensorIndex
from appliance.checkpoint.sharding import Shard, Shards

TORCH_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
}

QUANTISED = "F8_E4M3"


def load_weights(
    index: TensorIndex,
    destinations: Mapping[str, Tensor],
    report: Callable[[int, int], None],
    shards: Shards | None = None,
) -> int:
    """Copy every tensor of `index` to its destination, converting its dtype; of those among `shards` what these say.
    Returns the bytes of all that were read or skipped.

    `report(done, total)` is called as bytes are read, at most a few hundred times.

    Raises:
        ValueError: a tensor that the model needs is not there, has another shape, or is quantised where the config does
            not say so, or not where it does.
    """
    missing = sorted(set(destinations) - set(index.tensors))
    if missing:
        raise ValueError(
            f"the checkpoint lacks {len(missing):,} tensors that its config requires, such as {missing[0]}"
        )
    wanted = sorted(
        ((name, entry) for name, entry in index.tensors.items() if name in destinations),
        key=lambda item: (item[1].file, item[1].begin),
    )
    total = sum(entry.end - entry.begin for _, entry in wanted)
    done = reported = 0
    for name, entry, source in _tensors(wanted):
        destination = destinations[name]
        of_one = not destination.shape and math.prod(entry.shape) == 1  # one number, however it is stored
        shard = shards.get(name) if shards else None
        shape = tuple(destination.shape) if shard is None else shard.shape
        if tuple(entry.shape) != shape and not of_one:
            raise ValueError(f"{name} has the shape {list(entry.shape)}; the config requires {list(shape)}")
        if (entry.dtype == QUANTISED) != (name + SCALE in destinations):
            raise ValueError(f"{name} is {entry.dtype}, which contradicts quantization_config in the config")
        if shard is None:
            destination.copy_(source.view(destination.shape))
        else:
            _copy_shard(destination, source, shard)
        done += entry.end - entry.begin
        if (done - reported) * 200 >= total or done == total:
            report(done, total)
            reported = done
    _multiply_out(destinations)
    return done


def _copy_shard(destination: Tensor, source: Tensor, shard: Shard) -> None:
    start = 0
    for part in shard.ranges:
        destination.narrow(shard.dim, start, len(part)).copy_(source.narrow(shard.dim, part.start, len(part)))
        start += len(part)
    rest = destination.shape[shard.dim] - start
    if rest:
        destination.narrow(shard.dim, start, rest).zero_()


def _multiply_out(destinations: Mapping[str, Tensor]) -> None:
    """Multiply the scales into block-scaled weights that were not kept in FP8."""
    for name, scale in destinations.items():
        weight = destinations[name.removesuffix(SCALE)] if name.endswith(SCALE) else None
        if weight is None or weight.dtype == torch.float8_e4m3fn:
            continue
        # Row of blocks by row of blocks, so that the widened scales stay small.
        for rows, factors in zip(weight.split(BLOCK), scale, strict=True):
            rows.mul_(factors.repeat_interleave(BLOCK)[: weight.shape[-1]])


def unused_tensors(index: TensorIndex, destinations: Mapping[str, Tensor]) -> list[str]:
    """Tensors of the checkpoint that the model does not use, for a line in the log."""
    return sorted(name for name in index.tensors if name not in destinations and not name.endswith(IGNORED_SUFFIXES))


def _tensors(wanted: list[tuple[str, TensorEntry]]) -> Iterator[tuple[str, TensorEntry, Tensor]]:
    """The files' tensors, memory-mapped; each is valid until the next is requested."""
    mapped: mmap.mmap | None = None
    current: Path | None = None
    for name, entry in wanted:
        if entry.file != current:
            with entry.file.open("rb") as file:
                mapped = mmap.mmap(
                    file.fileno(), 0, access=mmap.ACCESS_COPY
                )  # a private view, as torch wants it writable
            mapped.madvise(mmap.MADV_SEQUENTIAL)
            current = entry.file
        dtype = TORCH_DTYPES.get(entry.dtype)
        if dtype is None:
            raise ValueError(f"{name} is {entry.dtype}, which the native engine does not support")
        assert mapped is not None
        count = (entry.end - entry.begin) // dtype.itemsize
        source = (
            torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.begin)
            if count
            else torch.empty(0, dtype=dtype)
        )
        yield name, entry, source.view(entry.shape)
        _let_go(mapped, entry)


def _let_go(mapped: mmap.mmap, entry: TensorEntry) -> None:
    """Give back the pages that a tensor was read from: otherwise a file would be in this process's memory as a whole,
    beside the copy of it. They stay in the system's cache of files."""
    start = entry.begin - entry.begin % mmap.PAGESIZE
    if entry.end > start:
        mapped.madvise(mmap.MADV_DONTNEED, start, entry.end - start)
