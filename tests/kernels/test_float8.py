"""FP8 by integers."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels.float8 import decode_e4m3


@triton.jit
def decode_all(bytes_ptr, out_ptr):
    index = tl.arange(0, 256)
    tl.store(out_ptr + index, decode_e4m3(tl.load(bytes_ptr + index)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_byte_is_decoded_as_torch_does(dtype):
    """All 256 bit patterns, NaN and subnormal numbers included."""
    bits = torch.arange(256, dtype=torch.uint8)
    found = torch.empty(256, dtype=dtype)
    decode_all[(1,)](bits, found)
    torch.testing.assert_close(found, bits.view(torch.float8_e4m3fn).to(dtype), equal_nan=True, rtol=0, atol=0)
