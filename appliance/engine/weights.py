"""Fill a model's parameters from safetensors files, in the order in which the bytes lie on the disk."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from appliance.checkpoint.layout import IGNORED_SUFFIXES
from appliance.checkpoint.quantization import BLOCK, MX_BLOCK, is_scale, scale_of, weight_of
from appliance.checkpoint.safetensors import TensorEntry, TensorIndex
from appliance.checkpoint.sharding import Shard, Shards

TORCH_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}

QUANTISED = ("F8_E4M3", "I8", "U8")
FP4_SCALES = torch.float8_e8m0fnu  # in which nothing else is kept
# What the codes of MXFP4 stand for (OCP MX specification 1.0, section 5.3.3).
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


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
        scale = scale_of(name, destinations)
        if (entry.dtype in QUANTISED) != (scale is not None):
            raise ValueError(f"{name} is {entry.dtype}, which contradicts quantization_config in the config")
        in_fp4 = scale is not None and destinations[scale].dtype == FP4_SCALES
        if in_fp4 != (entry.dtype in QUANTISED[1:]):
            raise ValueError(f"{name} is {entry.dtype}, which contradicts the format of experts in the config")
        shape = tuple(destination.shape) if shard is None else shard.shape
        if in_fp4 and shard is None:
            shape = (shape[0], shape[1] // 2)
        if tuple(entry.shape) != shape and not of_one:
            raise ValueError(f"{name} has the shape {list(entry.shape)}; the config requires {list(shape)}")
        if in_fp4:
            source = _unpacked(source if shard is None else _taken(source, shard))
            destination.copy_(source)
        elif shard is None:
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


def _taken(source: Tensor, shard: Shard) -> Tensor:
    return torch.cat([source.narrow(shard.dim, part.start, len(part)) for part in shard.ranges], dim=shard.dim)


def _unpacked(codes: Tensor) -> Tensor:
    """Two numbers a byte, the first in its lower half: [rows, columns / 2] -> [rows, columns] float32, not scaled."""
    bits = codes.view(torch.uint8).int()
    return torch.tensor(FP4_VALUES)[torch.stack((bits & 15, bits >> 4), dim=-1).flatten(-2)]


def _multiply_out(destinations: Mapping[str, Tensor]) -> None:
    """Multiply the scales into quantised weights that were not kept in FP8."""
    for name, scale in destinations.items():
        weight = destinations[weight_of(name)] if is_scale(name) else None
        if weight is None or weight.dtype == torch.float8_e4m3fn:
            continue
        if scale.dtype == FP4_SCALES:
            weight.unflatten(1, (-1, MX_BLOCK)).mul_(scale.float().unsqueeze(-1))
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
