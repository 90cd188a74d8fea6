"""Packed entries of 512 numbers, of which 64 turn, within Triton kernels: read as a matrix unit multiplies them, and
written. An entry has 576 bytes of numbers, at multiples of 16 bytes, and 8 of scales."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.float8 import decode_e4m3, encode_e4m3
from kernels.packed_entries import GROUP, data_bytes, entry_bytes
from kernels.packed_entries.variants import DIM, ROPE

_DIM, _GROUP = tl.constexpr(DIM), tl.constexpr(GROUP)
_GROUPS = tl.constexpr(DIM // GROUP)
_PLAIN = tl.constexpr((DIM - ROPE) // GROUP)  # groups of e4m3; behind them is one of what turns
UNITS = tl.constexpr(data_bytes(DIM, ROPE) // 16)  # of an entry's numbers, in 16 bytes
_TURNED = tl.constexpr((DIM - ROPE) // 2)  # where those that turn begin, in 2 bytes


class Pages(NamedTuple):
    """Packed pages as a kernel is given them: by bytes, as bfloat16, and with all scales of an entry in one number."""

    codes: Tensor
    turned: Tensor
    scales: Tensor
    stride16: int  # from page to page, in 16 bytes
    rows: int  # entries of a page

    @property
    def views(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.codes, self.turned, self.scales


def as_pages(pages: Tensor, codes: str) -> Pages:
    """Of `pages` [P, bytes] uint8, any multiple of 16 bytes apart; `codes` is a variant's "*fp8e4nv" or "*u8"."""
    assert pages.dtype == torch.uint8, f"entries in {pages.dtype}"
    assert pages.stride(0) % 16 == 0, f"pages {pages.stride(0)} bytes apart"
    kind = torch.uint8 if codes == "*u8" else torch.float8_e4m3fn
    rows = pages.shape[1] // entry_bytes(DIM, ROPE)
    views = pages.view(kind), pages.view(torch.bfloat16), pages.view(torch.int64)
    return Pages(*views, pages.stride(0) // 16, rows)


@triton.jit
def load_entries(codes, turned, scales, seen, TYPE: tl.constexpr):
    """[N] pointers, to an entry's first byte, to the same as bfloat16, and to its scales: what does not turn, [N, DIM]
    with zeros in the last places, and what turns, [N, ROPE], both in `TYPE`. All of it is zeros where nothing is
    `seen`, for what others own may be NaN."""
    group = tl.arange(0, _GROUPS)
    place = tl.arange(0, _GROUP)
    row = codes[:, None, None] + (group[None, :, None] * _GROUP + place[None, None, :])
    code = tl.load(row, mask=seen[:, None, None] & (group < _PLAIN)[None, :, None], other=0.0)
    behind = tl.load(turned[:, None] + (place + _TURNED)[None, :], mask=seen[:, None], other=0.0)
    exponents = tl.load(scales, mask=seen, other=0)
    bits = (exponents[:, None] >> (8 * group)[None, :].to(tl.int64)) & 255
    scale = (bits.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    value = code.to(tl.float32) if code.dtype.is_floating() else decode_e4m3(code)
    plain = tl.reshape(value * scale[:, :, None], [codes.shape[0], _DIM])
    return plain.to(TYPE), behind.to(TYPE)


@triton.jit
def store_entries(x, codes, turned, scales, written):
    """`x` [N, DIM] float32, packed, to where [N] pointers lead as in `load_entries`, where `written`."""
    count: tl.constexpr = x.shape[0]
    group = tl.arange(0, _GROUPS)
    place = tl.arange(0, _GROUP)[None, None, :]
    plain = (group < _PLAIN)[None, :, None]
    x = tl.reshape(x, [count, _GROUPS, _GROUP])
    bits = (tl.maximum(tl.max(tl.abs(x), axis=2), 1e-4) * (1.0 / 448.0)).to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFFF) & 0x7F800000  # up to the next power of two
    scale = bits.to(tl.float32, bitcast=True)[:, :, None]
    scaled = tl.clamp(x / scale, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    TYPE: tl.constexpr = codes.dtype.element_ty
    code = scaled.to(TYPE) if TYPE.is_floating() else encode_e4m3(scaled)
    inside = written[:, None, None]
    tl.store(codes[:, None, None] + (group[None, :, None] * _GROUP + place), code, mask=inside & plain)
    tl.store(turned[:, None, None] + (place + _TURNED + 0 * group[None, :, None]), x.to(tl.bfloat16),
             mask=inside & (group == _PLAIN)[None, :, None])  # fmt: skip
    exponents = tl.where(group[None, :] < _PLAIN, bits >> 23, 0).to(tl.int64) << (8 * group)[None, :].to(tl.int64)
    tl.store(scales, tl.sum(exponents, axis=1), mask=written)
