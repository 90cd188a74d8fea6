"""Packed entries in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.index_cache.reference import quantise
from kernels.packed_entries import data_bytes, entry_bytes, group_of, scales_bytes

_BIAS = 127  # what the exponents of scales count from


def write_entries(entries: Tensor, pages: Tensor, slots: Tensor, rope_dim: int) -> None:
    """`entries` [N, dim] into the distinct `slots` [N] of `pages`: [P, rows, dim] as they are, or packed [P, bytes],
    of which slot i is row i % rows of page i // rows."""
    rows = entry_rows(pages, entries.shape[-1], rope_dim)
    page, row = slots // rows, slots % rows
    if pages.dtype != torch.uint8:
        pages[page, row] = entries.to(pages.dtype)
        return
    data, scales = _views(pages, entries.shape[-1], rope_dim)
    data[page, row], scales[page, row] = pack(entries, rope_dim)


def read_entries(pages: Tensor, slots: Tensor, dim: int, rope_dim: int, dtype: torch.dtype) -> Tensor:
    """Those in `slots` [...]: [..., dim] in `dtype`."""
    rows = entry_rows(pages, dim, rope_dim)
    page, row = slots // rows, slots % rows
    if pages.dtype != torch.uint8:
        return pages[page, row].to(dtype)
    data, scales = _views(pages, dim, rope_dim)
    return unpack(data[page, row], scales[page, row], rope_dim, dtype)


def as_kept(entries: Tensor, pages: Tensor, rope_dim: int) -> Tensor:
    """`entries` [N, dim] as they would be read from `pages`."""
    if pages.dtype != torch.uint8:
        return entries.to(pages.dtype).to(entries.dtype)
    return unpack(*pack(entries, rope_dim), rope_dim, entries.dtype)


def pack(entries: Tensor, rope_dim: int) -> tuple[Tensor, Tensor]:
    """[N, dim] -> bytes of its numbers [N, data_bytes] and of its scales [N, scales_bytes]."""
    count, dim = entries.shape
    nope = dim - rope_dim
    codes, scales = quantise(entries[:, :nope], group_of(nope))
    turned = entries[:, nope:].to(torch.bfloat16).contiguous().view(torch.uint8)
    exponents = entries.new_zeros((count, scales_bytes(dim, rope_dim)), dtype=torch.uint8)
    exponents[:, : scales.shape[1]] = (scales.log2() + _BIAS).to(torch.uint8)
    return torch.cat((codes.view(torch.uint8), turned), dim=-1), exponents


def unpack(data: Tensor, exponents: Tensor, rope_dim: int, dtype: torch.dtype) -> Tensor:
    """What `pack` made, [..., data_bytes] and [..., scales_bytes] -> [..., dim] in `dtype`."""
    nope = data.shape[-1] - 2 * rope_dim
    group = group_of(nope)
    # Not by torch.exp2, which compiles its kernel where it is first called on a GPU.
    scales = exponents[..., : nope // group].contiguous().view(torch.float8_e8m0fnu).float().unsqueeze(-1)
    plain = (decode_e4m3(data[..., :nope]).unflatten(-1, (-1, group)) * scales).flatten(-2)
    turned = data[..., nope:].contiguous().view(torch.bfloat16)
    return torch.cat((plain.to(dtype), turned.to(dtype)), dim=-1)


def decode_e4m3(codes: Tensor) -> Tensor:
    """uint8 -> float32, by integers alone: sign, four bits of exponent that count from 7, three of mantissa; exponent 0
    is that of multiples of 2^-9, and 0x7f and 0xff are NaN (Micikevicius et al., 2022, arXiv 2209.05433)."""
    bits = codes.to(torch.int32)
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    # A float32 has 23 bits of mantissa, and an exponent that counts from 127.
    normal = (((exponent + 120) << 23) | (mantissa << 20)).view(torch.float32)
    value = torch.where(exponent == 0, mantissa.float() * 2.0**-9, normal)
    value = torch.where((bits & 127) == 127, torch.nan, value)
    return torch.where(bits >= 128, -value, value)


def entry_rows(pages: Tensor, dim: int, rope_dim: int) -> int:
    """How many entries a page has."""
    return pages.shape[1] if pages.dtype != torch.uint8 else pages.shape[1] // entry_bytes(dim, rope_dim)


def _views(pages: Tensor, dim: int, rope_dim: int) -> tuple[Tensor, Tensor]:
    """The numbers [P, rows, data_bytes] and the scales [P, rows, scales_bytes] of packed pages."""
    data, scales = data_bytes(dim, rope_dim), scales_bytes(dim, rope_dim)
    rows = entry_rows(pages, dim, rope_dim)
    return (
        pages[:, : rows * data].unflatten(1, (rows, data)),
        pages[:, rows * data : rows * (data + scales)].unflatten(1, (rows, scales)),
    )
