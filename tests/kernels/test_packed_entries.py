"""Packed entries: sizes and places of every byte, all 256 codes of e4m3, and rounding as DeepSeek's code has it."""

from __future__ import annotations

import pytest
import torch

from kernels.index_cache.reference import pages as key_pages
from kernels.indexer import key_bytes
from kernels.packed_entries import entry_bytes, page_bytes
from kernels.packed_entries.reference import decode_e4m3, entry_rows, pack, read_entries, unpack, write_entries

DIM, ROPE = 512, 64


def entries(count: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((count, DIM), generator=generator) * torch.logspace(-4, 3, DIM)


def pages(count: int, rows: int) -> torch.Tensor:
    """Filled with what must not be touched."""
    return torch.full((count, page_bytes(rows, entry_bytes(DIM, ROPE))), 0xA5, dtype=torch.uint8)[:, : rows * 584]


def test_sizes_of_entries_and_pages():
    assert entry_bytes(DIM, ROPE) == 584
    assert [page_bytes(rows, 584) for rows in (64, 2)] == [37_440, 1_728]
    assert page_bytes(64, key_bytes(128)) == 8_640


@pytest.mark.parametrize("rows", [64, 2])
def test_where_each_byte_of_a_page_lies(rows):
    """Numbers of all entries, 448 codes and 64 of 16 bits each, then 8 bytes of scales each, the last of them 0."""
    kept, made = pages(3, rows), entries(4)
    slots = torch.tensor([rows, 2 * rows - 1, 0, 3 * rows - 1])
    write_entries(made, kept, slots, ROPE)
    assert entry_rows(kept, DIM, ROPE) == rows
    for slot, entry in zip(slots.tolist(), made, strict=True):
        page, row = kept[slot // rows], slot % rows
        numbers = page[row * 576 : (row + 1) * 576]
        scales = page[rows * 576 + row * 8 :][:8]
        assert scales[7] == 0
        assert torch.equal(numbers[448:].clone().view(torch.bfloat16), entry[448:].bfloat16())
        for group in range(7):
            part = entry[group * 64 : (group + 1) * 64]
            exponent = int(torch.ceil(torch.log2(part.abs().max().clamp(min=1e-4).double() / 448)))
            assert scales[group] == exponent + 127
            codes = (part / 2.0**exponent).to(torch.float8_e4m3fn)
            assert torch.equal(numbers[group * 64 : (group + 1) * 64].clone(), codes.view(torch.uint8))
    others = torch.ones(3, rows, dtype=torch.bool)
    others[slots // rows, slots % rows] = False
    assert bool((kept[:, : rows * 576].unflatten(1, (rows, 576))[others] == 0xA5).all())
    assert bool((kept[:, rows * 576 :].unflatten(1, (rows, 8))[others] == 0xA5).all())


def test_what_is_read_is_what_was_written_rounded():
    kept, made = pages(2, 64), entries(5)
    slots = torch.tensor([7, 64, 127, 0, 3])
    write_entries(made, kept, slots, ROPE)
    found = read_entries(kept, slots.view(1, 5), DIM, ROPE, torch.float32)[0]
    assert torch.equal(found, unpack(*pack(made, ROPE), ROPE, torch.float32))
    assert torch.equal(found[:, 448:], made[:, 448:].bfloat16().float())
    scale = made[:, :448].unflatten(1, (7, 64)).abs().amax(-1, keepdim=True)
    error = (found - made)[:, :448].unflatten(1, (7, 64)).abs()
    assert bool((error <= scale * 2**-4).all())
    again = unpack(*pack(found, ROPE), ROPE, torch.float32)
    assert torch.equal(again, found)


def test_all_codes_of_e4m3_by_integers():
    codes = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(
        decode_e4m3(codes), codes.view(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True
    )
    assert torch.signbit(decode_e4m3(codes[128:])[:-1]).all()


def test_scales_at_powers_of_two():
    """An amount that 448 times a power of two holds exactly takes that one, as the division by 448 gives it."""
    made = torch.zeros(3, DIM)
    made[:, 0] = torch.tensor([448.0, 449.0, 3.5])
    _, scales = pack(made, ROPE)
    assert scales[:, 0].tolist() == [127, 128, 120]


def test_smaller_entries_have_groups_that_divide():
    made = torch.randn(3, 32)
    data, scales = pack(made, 16)
    assert (data.shape, scales.shape) == ((3, 48), (3, 8))
    torch.testing.assert_close(unpack(data, scales, 16, torch.float32), made, rtol=0.07, atol=0.02)


def test_keys_and_their_scales_in_a_padded_page():
    page = torch.zeros(2, 8_640, dtype=torch.uint8)[:, : 64 * 132]
    keys, scales = key_pages(page, 128)
    assert (keys.shape, scales.shape) == ((2, 64, 128), (2, 64, 1))
    scales[1, 63] = 2.0
    assert page[1, -4:].view(torch.float32).item() == 2.0
