"""Fill a model's parameters from safetensors files: where each tensor goes, and in which form."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from appliance.checkpoint.layout import IGNORED_SUFFIXES
from appliance.checkpoint.quantization import BLOCK, MX_BLOCK, is_scale, scale_of, weight_of
from appliance.checkpoint.safetensors import TensorEntry, TensorIndex
from appliance.checkpoint.sharding import Shard, Shards
from appliance.engine.readers import PART_BYTES, Part, read_parts
from kernels.float4 import unpacked

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

# So many times its bytes a tensor in MXFP4 takes while it is unpacked.
FP4_UNPACKING = 32


def load_weights(
    index: TensorIndex,
    destinations: Mapping[str, Tensor],
    report: Callable[[int, int], None],
    shards: Shards | None = None,
) -> int:
    """Copy every tensor of `index` to its destination, converting its dtype; of those among `shards` what these say.
    Returns the bytes of all whose destinations there are. They are read by several threads, in the order in which they
    lie on the disk.

    `report(done, total)` is called as bytes are read, at most a few hundred times.

    Raises:
        ValueError: a tensor that the model needs is not there, has another shape, or is quantised where the config does
            not say so, or not where it does.
        CheckpointError: a file cannot be read, or ends too soon.
    """
    missing = sorted(set(destinations) - set(index.tensors))
    if missing:
        raise ValueError(
            f"the checkpoint lacks {len(missing):,} tensors that its config requires, such as {missing[0]}"
        )
    if not destinations:
        return 0
    wanted = sorted(
        ((name, entry) for name, entry in index.tensors.items() if name in destinations),
        key=lambda item: (item[1].file, item[1].begin),
    )
    parts: list[Part] = []
    for name, entry in wanted:
        shard = shards.get(name) if shards else None
        unpacks = _check(name, entry, destinations, shard)
        parts += _parts(name, entry, destinations[name], shard, unpacks)
    total, read = sum(entry.end - entry.begin for _, entry in wanted), sum(part.end - part.begin for part in parts)
    done = reported = 0

    def progress(count: int) -> None:
        nonlocal done, reported
        done += count
        if (done - reported) * 200 >= read or done == read:
            report(total * done // read, total)
            reported = done

    read_parts(parts, next(iter(destinations.values())).device, progress)
    _multiply_out(destinations)
    return total


def _check(name: str, entry: TensorEntry, destinations: Mapping[str, Tensor], shard: Shard | None) -> bool:
    """Whether it is in MXFP4 and its destination is not. Raises ValueError where it does not fit there."""
    destination = destinations[name]
    scale = scale_of(name, destinations)
    if (entry.dtype in QUANTISED) != (scale is not None):
        raise ValueError(f"{name} is {entry.dtype}, which contradicts quantization_config in the config")
    in_fp4 = scale is not None and destinations[scale].dtype == FP4_SCALES
    if in_fp4 != (entry.dtype in QUANTISED[1:]):
        raise ValueError(f"{name} is {entry.dtype}, which contradicts the format of experts in the config")
    unpacks = in_fp4 and destination.dtype != torch.uint8
    shape = tuple(destination.shape) if shard is None else shard.shape
    if unpacks and shard is None:
        shape = (shape[0], shape[1] // 2)
    of_one = not destination.shape and math.prod(entry.shape) == 1  # one number, however it is stored
    if tuple(entry.shape) != shape and not of_one:
        raise ValueError(f"{name} has the shape {list(entry.shape)}; the config requires {list(shape)}")
    if entry.dtype not in TORCH_DTYPES:
        raise ValueError(f"{name} is {entry.dtype}, which the native engine does not support")
    return unpacks


def _parts(name: str, entry: TensorEntry, destination: Tensor, shard: Shard | None, unpacks: bool) -> Iterator[Part]:
    """Of one tensor: those of its rows that are wanted, and of these all columns."""
    shape, dtype = tuple(entry.shape) or (1,), TORCH_DTYPES[entry.dtype]
    if destination.dtype == torch.uint8:
        dtype = torch.uint8  # two numbers of four bits, stored as either kind of byte
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    if not destination.shape:
        destination = destination.view(shape)
    ranges: tuple[range, ...] = (range(shape[0]),)
    columns: Shard | None = None
    if shard is not None and shard.dim == 0:
        ranges = shard.ranges
    elif shard is not None:
        columns = shard
    as_it_is = dtype == destination.dtype and columns is None and not unpacks
    start = 0
    for rows in ranges:
        place = destination.narrow(0, start, len(rows))
        start += len(rows)
        begin, end = (entry.begin + row * row_bytes for row in (rows.start, rows.stop))
        if as_it_is and place.is_contiguous():
            room = place.flatten().view(torch.uint8)
            for at in range(begin, end, PART_BYTES):
                upto = min(at + PART_BYTES, end)
                yield Part(name, entry.file, at, upto, room=room[at - begin : upto - begin])
            continue
        taken = row_bytes * (FP4_UNPACKING if unpacks else 1)
        for some in place.split(max(PART_BYTES // max(taken, 1), 1)):
            size = len(some) * row_bytes
            convert = functools.partial(_convert, some, dtype, (len(some), *shape[1:]), columns, unpacks)
            yield Part(name, entry.file, begin, begin + size, take=convert)
            begin += size
    if start < len(destination):
        destination[start:].zero_()


def _convert(
    place: Tensor, dtype: torch.dtype, shape: tuple[int, ...], columns: Shard | None, unpacks: bool, stored: Tensor
) -> None:
    """Fill `place` from the bytes of some rows."""
    rows = stored.view(dtype).view(shape)
    taken = [rows]
    if columns is not None:
        taken = [rows.narrow(columns.dim, part.start, len(part)) for part in columns.ranges]
    dim = 0 if columns is None else columns.dim
    if unpacks:
        place.copy_(unpacked(torch.cat(taken, dim)))
        return
    start = 0
    for part in taken:
        size = part.shape[dim]
        place.narrow(dim, start, size).copy_(part)
        start += size
    place.narrow(dim, start, place.shape[dim] - start).zero_()


def _multiply_out(destinations: Mapping[str, Tensor]) -> None:
    """Multiply the scales into quantised weights that were not kept so."""
    for name, scale in destinations.items():
        weight = destinations[weight_of(name)] if is_scale(name) else None
        if weight is None or weight.dtype in (torch.float8_e4m3fn, torch.uint8):
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
