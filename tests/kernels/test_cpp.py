"""The kernels for processors against plain torch, by every instruction set that this processor has."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from kernels.cases import TOLERANCES, error
from kernels.cpu import build, library
from kernels.fp8_linear.rounded import Rounded, rows_of
from kernels.gated_activation import reference as activation_reference
from kernels.paged_attention import reference as attention_reference
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.rms_norm import reference as norm_reference
from kernels.rotary_cache import reference as rotary_reference

pytestmark = pytest.mark.skipif(not library.usable(), reason="no kernels are compiled for this processor")
if library.usable() == "avx512-bf16":
    from kernels.linear import cpp as linear
if library.usable():
    from kernels.gated_activation import cpp as activation
    from kernels.paged_attention import cpp as attention
    from kernels.rms_norm import cpp as norm
    from kernels.rotary_cache import cpp as rotary

DTYPES = [torch.float32, torch.bfloat16]
QUERIES = (1, 1, 1, 70, 5, 130)
CONTEXTS = (1, 65, 200, 70, 133, 300)


@pytest.fixture(params=library.runnable(), autouse=True)
def _instruction_set(request, monkeypatch):
    opened = library.open_library(request.param)
    monkeypatch.setattr(attention, "_attend", opened.ingot_paged_attention)
    monkeypatch.setattr(norm, "_norm", opened.ingot_rms_norm)
    monkeypatch.setattr(activation, "_activate", opened.ingot_gated_activation)
    monkeypatch.setattr(rotary, "_turn", opened.ingot_rotary_cache)


@pytest.fixture(autouse=True)
def _threads():
    yield
    library.use_threads(1)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Pages:
    """Sequences over pages in any order, with NaN in every slot that belongs to none of them."""

    def __init__(self, queries, contexts, head_dim, dtype, *, heads=6, kv_heads=2, block_size=16):
        counts = [-(-context // block_size) for context in contexts]
        order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(1))[: sum(counts)]
        self.tables = torch.zeros((len(contexts), max(counts)), dtype=torch.int32)
        self.caches = [
            torch.full((sum(counts) + 2, block_size, kv_heads, head_dim), torch.nan, dtype=dtype) for _ in "kv"
        ]
        for row, (blocks, context) in enumerate(zip(order.split(counts), contexts, strict=True)):
            self.tables[row, : len(blocks)] = blocks
            for kind, cache in enumerate(self.caches):
                slots = cache[blocks].flatten(0, 1)
                slots[:context] = randn(context, kv_heads, head_dim, dtype=dtype, seed=2 * row + kind)
                cache[blocks] = slots.view(-1, *cache.shape[1:])
        # The first heads of a wider tensor, as those of the fused projection are.
        self.query = randn(sum(queries), heads + 2 * kv_heads, head_dim, dtype=dtype, seed=99)[:, :heads]
        self.metadata = AttentionMetadata(
            query_lens=list(queries),
            context_lens=list(contexts),
            num_decodes=sum(1 for _ in itertools.takewhile(lambda count: count == 1, queries)),
            query_start_loc=torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32),
            seq_lens=torch.tensor(contexts, dtype=torch.int32),
            block_tables=self.tables,
            slot_mapping=torch.zeros(sum(queries), dtype=torch.int64),
        )

    def run(self, function, **options):
        return function(self.query, *self.caches, self.metadata, self.query.shape[-1] ** -0.5, **options)

    def alone(self, row, tokens):
        """The last but so many tokens of one sequence taken away, and then its last token alone."""
        end = int(self.metadata.query_start_loc[row + 1]) - tokens
        one = AttentionMetadata(
            query_lens=[1],
            context_lens=[self.metadata.context_lens[row] - tokens],
            num_decodes=1,
            query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
            seq_lens=self.metadata.seq_lens[row, None] - tokens,
            block_tables=self.tables[row, None],
            slot_mapping=torch.zeros(1, dtype=torch.int64),
        )
        query = self.query[end - 1, None]
        keys, values = self.caches
        return end - 1, attention.paged_attention(query, keys, values, one, query.shape[-1] ** -0.5)[0]


@pytest.mark.parametrize("options", [{}, {"sliding_window": 70}, {"sinks": randn(6)}, {"soft_cap": 5.0}], ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 96, 256])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_agrees(dtype, head_dim, options):
    pages = Pages(QUERIES, CONTEXTS, head_dim, dtype)
    found = pages.run(attention.paged_attention, **options)
    pages.query, pages.caches = pages.query.float(), [cache.float() for cache in pages.caches]
    assert error(found, pages.run(attention_reference.paged_attention, **options)) <= TOLERANCES[dtype] / 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_gets_the_same_bits_alone_as_in_any_batch_and_chunk(dtype):
    pages = Pages(QUERIES, CONTEXTS, 64, dtype)
    found = pages.run(attention.paged_attention)
    for row, tokens in ((0, 0), (2, 0), (3, 0), (3, 31), (4, 3), (5, 0), (5, 64), (5, 129)):
        at, alone = pages.alone(row, tokens)
        assert torch.equal(found[at], alone)


def test_threads_change_no_bit():
    pages = Pages(QUERIES, CONTEXTS, 64, torch.bfloat16)
    found = pages.run(attention.paged_attention)
    for count in (2, 5):
        library.use_threads(count)
        for _ in range(200):
            assert torch.equal(pages.run(attention.paged_attention), found)


def test_a_damaged_sequence_shows_and_its_neighbours_stay_whole():
    pages = Pages(QUERIES, CONTEXTS, 64, torch.bfloat16)
    before = pages.run(attention.paged_attention)
    pages.caches[0][pages.tables[2, 3], 5] = torch.nan
    after = pages.run(attention.paged_attention)
    assert after[2].isnan().all()
    assert torch.equal(after[3:], before[3:])
    assert torch.equal(after[:2], before[:2])


def test_lengths_are_read_from_the_tensors_where_the_host_knows_bounds_only():
    pages = Pages((1, 1, 9), (40, 3, 30), 64, torch.float32)
    found = pages.run(attention.paged_attention)
    pages.metadata = replace(pages.metadata, query_lens=[1, 1, 64], context_lens=[64] * 3, bounds=True)
    assert torch.equal(pages.run(attention.paged_attention), found)


@pytest.mark.parametrize("size", [64, 100, 384])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms_agree(dtype, offset, size):
    x, weight = randn(7, size, dtype=dtype), randn(size, dtype=dtype, seed=1)
    sums, expected_sums = randn(7, size, dtype=dtype, seed=2), randn(7, size, dtype=dtype, seed=2)
    expected = norm_reference.rms_norm(x, weight, 1e-6, expected_sums, offset)
    found = rows_of(norm.rms_norm(x, weight, 1e-6, sums, offset))
    assert torch.equal(sums, expected_sums)
    assert error(found, expected) <= TOLERANCES[dtype] / 5
    expected = norm_reference.rms_norm(x, weight, 1e-6)
    assert error(rows_of(norm.rms_norm(x, weight, 1e-6)), expected) <= TOLERANCES[dtype] / 5
    rounded = norm.rms_norm(x, weight, 1e-6, None, 0.0, True)
    assert isinstance(rounded, Rounded)
    assert rounded.values is None


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activations_agree(dtype, name, limit):
    x = 8 * randn(9, 2 * 100, dtype=dtype)
    x[0, 0], x[1, 1], x[2, 2] = 200, -200, torch.nan
    found, expected = (each.gated_activation(x, name, limit) for each in (activation, activation_reference))
    assert error(found, expected) <= TOLERANCES[dtype] / 5
    assert found.isnan().sum() == 1


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "turning"), [(64, 64), (80, 20), (16, 16)])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_are_normed_turned_and_kept_alike(dtype, normed, head_dim, turning, interleaved):
    positions, slots = torch.tensor([0, 5, 17, 3]), torch.tensor([9, -1, 3, 0])
    angles = randn(20, turning // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)
    norms = (randn(head_dim, dtype=dtype, seed=5), randn(head_dim, dtype=dtype, seed=6)) if normed else None
    results = []
    for function in (rotary_reference.rotary_cache, rotary.rotary_cache):
        heads = randn(4, 7, head_dim, dtype=dtype)
        query, key, value = heads.split((4, 2, 1), dim=1)
        key = key[:, :1]
        keys, values = (torch.zeros((3, 4, 1, head_dim), dtype=dtype) for _ in "kv")
        function(query, key, value, positions, cos_sin, keys, values, slots, norms, 1e-6, interleaved)
        results.append((query, keys, values))
    for found, expected in zip(*reversed(results), strict=True):
        assert error(found, expected) <= TOLERANCES[dtype]


def test_rows_are_the_same_by_any_threads():
    """Of as many numbers as several threads share."""
    rows, head_dim, dtype = 500, 64, torch.bfloat16
    cos_sin = randn(rows, head_dim, dtype=dtype, seed=3)

    def results():
        sums, heads = randn(rows, 200, dtype=dtype, seed=1), randn(rows, 8, head_dim, dtype=dtype)
        keys, values = (torch.zeros((rows, 1, 1, head_dim), dtype=dtype) for _ in "kv")
        query, key, value = heads.split((6, 1, 1), dim=1)
        slots = torch.randperm(rows, generator=torch.Generator().manual_seed(4))
        rotary.rotary_cache(query, key, value, torch.arange(rows), cos_sin, keys, values, slots)
        x = randn(rows, 200, dtype=dtype)
        return [norm.rms_norm(x, x[0], 1e-6, sums), sums, activation.gated_activation(x), heads, keys, values]

    expected = results()
    for count in (2, 5):
        library.use_threads(count)
        for _ in range(50):
            assert all(torch.equal(*pair) for pair in zip(results(), expected, strict=True))


def test_calls_of_many_and_few_threads_take_turns():
    """Threads that one call has no use for are there for the next."""
    x = randn(2000, 400, dtype=torch.bfloat16)
    expected = activation.gated_activation(x)
    for count in [7, 2, 1, 3, 12] * 40:
        library.use_threads(count)
        assert torch.equal(activation.gated_activation(x[: 170 * count]), expected[: 170 * count])


@pytest.mark.skipif(library.usable() != "avx512-bf16", reason="this processor does not multiply pairs of bfloat16")
class TestLinear:
    @pytest.mark.parametrize(("outputs", "inputs"), [(64, 32), (100, 2), (130, 70), (640, 384), (64, 4096)])
    @pytest.mark.parametrize("tokens", [1, 2, 5, 6, 7, 20])
    @pytest.mark.parametrize("bias", [False, True])
    def test_products_agree(self, outputs, inputs, tokens, bias):
        x, weight = randn(tokens, inputs, dtype=torch.bfloat16), randn(outputs, inputs, dtype=torch.bfloat16, seed=1)
        added = randn(outputs, dtype=torch.bfloat16, seed=2) if bias else None
        expected = torch.nn.functional.linear(x.float(), weight.float(), None if added is None else added.float())
        packed = linear.prepare(weight)
        assert torch.equal(linear.linear(x, weight, added), torch.nn.functional.linear(x, weight, added))
        assert error(linear.linear(x, packed, added), expected) <= TOLERANCES[torch.bfloat16] / 2

    def test_a_row_gets_the_same_bits_alone_as_in_any_batch_and_by_any_threads(self):
        x, weight = randn(23, 384, dtype=torch.bfloat16), linear.prepare(randn(900, 384, dtype=torch.bfloat16))
        found = linear.linear(x, weight)
        for row in range(len(x)):
            assert torch.equal(linear.linear(x[row, None], weight)[0], found[row])
        library.use_threads(3)
        for _ in range(200):
            assert torch.equal(linear.linear(x, weight), found)

    def test_an_activation_and_a_place_of_its_own(self):
        x, weight = randn(5, 64, dtype=torch.bfloat16), randn(256, 64, dtype=torch.bfloat16, seed=1)
        packed, out = linear.prepare(weight), torch.empty(5, 256, dtype=torch.bfloat16)
        assert linear.linear(x, packed, out=out) is out
        sums = linear.linear(x, packed, out=torch.empty(5, 256))
        assert torch.equal(sums.bfloat16(), out)
        assert error(sums, x.float() @ randn(256, 64, dtype=torch.bfloat16, seed=1).float().t()) < 1e-6
        found = linear.linear(x, packed, None, "silu", 0.5, activation.gated_activation)
        assert torch.equal(found, activation.gated_activation(out, "silu", 0.5))


def test_building_again_does_nothing_and_what_is_stale_goes(tmp_path, monkeypatch):
    for name in library.INSTRUCTION_SETS:
        library.library_path(name, tmp_path).touch()
    (tmp_path / "avx2-0123456789ab.so").touch()
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert build.build(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {
        library.library_path(name).name for name in library.INSTRUCTION_SETS
    }


@pytest.mark.parametrize("compiler", ["/nowhere/c++", "false"])
def test_a_compiler_that_is_missing_or_fails_is_named(tmp_path, compiler):
    command = [sys.executable, "-m", "kernels.cpu.build", str(tmp_path)]
    done = subprocess.run(command, env={"CXX": compiler, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert compiler in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    assert build.main([str(tmp_path / "nowhere" / "compiled")]) == 1
    assert str(tmp_path / "nowhere") in capsys.readouterr().err


def test_where_there_are_no_kernels_the_folder_is_there_all_the_same(tmp_path, monkeypatch):
    """The image copies it."""
    monkeypatch.setattr(build, "INSTRUCTION_SETS", {})
    assert build.main([str(tmp_path / "compiled")]) == 0
    assert list((tmp_path / "compiled").iterdir()) == []
