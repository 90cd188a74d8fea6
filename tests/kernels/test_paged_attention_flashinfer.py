"""The arguments FlashInfer gets for a batch. The doubles of its wrappers keep to the documented contract, and compute
by the reference; tests/gpu/test_flashinfer_sealed.py runs the real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from kernels.cases import TOLERANCES, error
from kernels.paged_attention import flashinfer, modules
from kernels.paged_attention.cases import Shape, batch
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.reference import paged_attention as reference

CPU = torch.device("cpu")


class Double:
    """A wrapper for pages in one row; `plans` collects the arguments of each."""

    plans: ClassVar[list[Double]] = []

    def __init__(self, workspace: Tensor, layout: str, backend: str, use_tensor_cores: bool | None = None) -> None:
        assert layout == "NHD"
        self.workspace, self.backend, self.use_tensor_cores = workspace, backend, use_tensor_cores

    def _plan(
        self, starts: Tensor, page_starts: Tensor, pages: Tensor, last: Tensor, *sizes: int, **options: Any
    ) -> None:
        self.plans.append(self)
        self.options, (_, _, _, block_size) = options, sizes
        counts = page_starts.diff()
        lens = ((counts - 1) * block_size + last).tolist()
        tables = torch.full((len(lens), int(counts.max())), -1, dtype=torch.int32)
        for i, count in enumerate(counts.tolist()):
            tables[i, :count] = pages[page_starts[i] : page_starts[i] + count]
        queries = starts.diff().tolist()
        assert len(pages) == page_starts[-1]
        assert {starts.dtype, page_starts.dtype, pages.dtype, last.dtype} == {torch.int32}
        self.metadata = AttentionMetadata(
            queries, lens, sum(n == 1 for n in queries), starts, torch.tensor(lens), tables.clamp(min=0), torch.empty(0)
        )

    def run(self, query: Tensor, caches: tuple[Tensor, Tensor], k_scale: float, v_scale: float, out: Tensor) -> None:
        left, options = self.options["window_left"], self.options
        assert query.dtype == options["q_data_type"]
        assert caches[0].dtype == options["kv_data_type"]
        out.copy_(
            reference(
                query, *caches, self.metadata, options["sm_scale"], None if left < 0 else left + 1, None,
                options["logits_soft_cap"], k_scale, v_scale,
            )
        )  # fmt: skip


class Decode(Double):
    def plan(self, *told: Any, **options: Any) -> None:
        sequences = len(told[2])
        self._plan(torch.arange(sequences + 1, dtype=torch.int32), *told, **options)


class Prefill(Double):
    def plan(self, *told: Any, causal: bool, **options: Any) -> None:
        assert causal
        self._plan(*told, **options)


@pytest.fixture(autouse=True)
def _flashinfer(monkeypatch):
    double = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Decode, BatchPrefillWithPagedKVCacheWrapper=Prefill)
    monkeypatch.setattr(flashinfer, "library", lambda: double)
    monkeypatch.setattr(flashinfer, "loading", lambda op: _Nothing())
    gpu = SimpleNamespace(major=9, minor=0, multi_processor_count=4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "Event", _Nothing)
    flashinfer._plan.cache_clear()
    flashinfer._workspace.cache_clear()
    Double.plans.clear()


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@pytest.mark.parametrize("soft_cap", [None, 15.0])
@pytest.mark.parametrize(
    "shape",
    [
        Shape((1, 1, 1), (1, 16, 47), heads=8, kv_heads=2, head_dim=64),
        Shape((17, 3), (17, 60), heads=4, kv_heads=4, head_dim=64),
        Shape((1, 1, 45, 2), (300, 7, 150, 2), heads=6, kv_heads=1, head_dim=64, sliding_window=33),
    ],
    ids=["decode", "prefill", "mixed, with a window"],
)
def test_a_batch_is_described_so_that_the_reference_s_result_comes_of_it(shape, soft_cap):
    """Blocks in any order, contexts that end on a block's edge and within it, chunks that continue a sequence."""
    made = batch(shape, torch.bfloat16, torch.bfloat16, CPU)
    arguments = (*made, 0.1, shape.sliding_window, None, soft_cap)
    assert error(flashinfer.paged_attention(*arguments), reference(*arguments)) <= TOLERANCES[torch.bfloat16]


def test_a_cache_in_8_bits_keeps_its_scales_and_leaves_prefill_to_the_kernel_that_can_read_it():
    shape = Shape((1, 9), (33, 9), heads=4, kv_heads=1, head_dim=64)
    arguments = (*batch(shape, torch.bfloat16, torch.float8_e4m3fn, CPU), 0.1, None, None, None, 0.5, 2.0)
    assert error(flashinfer.paged_attention(*arguments), reference(*arguments)) <= TOLERANCES[torch.bfloat16]
    assert [double.backend for double in Double.plans] == ["fa2", "fa2"]


def test_a_step_is_planned_once_for_all_layers_of_a_kind_and_anew_for_the_next_step():
    shape = Shape((1, 20), (40, 20), heads=4, kv_heads=1, head_dim=64)
    step = batch(shape, torch.bfloat16, torch.bfloat16, CPU)
    for window in (None, 8, None, 8):
        flashinfer.paged_attention(*step, 0.1, window)
    assert len(Double.plans) == 4  # decode and prefill, with and without a window
    assert len({id(double) for double in Double.plans}) == 4
    assert len({double.workspace.data_ptr() for double in Double.plans}) == 1, "layers run one after the other"
    following = batch(shape, torch.bfloat16, torch.bfloat16, CPU)
    flashinfer.paged_attention(*following, 0.1, None)
    assert len(Double.plans) == 6


@pytest.mark.parametrize(("kv_heads", "matrix_units"), [(8, False), (4, False), (2, True), (1, True)])
def test_decodes_take_the_kernel_that_suits_the_group(kv_heads, matrix_units):
    shape = Shape((1,), (5,), heads=8, kv_heads=kv_heads, head_dim=64)
    flashinfer.paged_attention(*batch(shape, torch.bfloat16, torch.bfloat16, CPU), 0.1)
    assert [double.use_tensor_cores for double in Double.plans] == [matrix_units]


@pytest.mark.parametrize(
    ("group", "head_dim", "prefills_too", "tile"),
    [(8, 128, True, 128), (8, 256, True, 64), (8, 128, False, 16), (32, 128, False, 64), (1, 64, False, 16)],
)
def test_partial_results_have_the_room_that_flashinfer_claims(group, head_dim, prefills_too, tile):
    """`PrefillPlan` claims heads * padded_batch_size * tile * head_dim floats, and as many again without head_dim; the
    padded batch is at most two blocks a multiprocessor over the key-value heads."""
    multiprocessors, kv_heads = 132, 8
    batch_size = 2 * multiprocessors // kv_heads
    claimed = group * kv_heads * batch_size * tile * (head_dim + 1) * 4
    assert claimed <= modules.partial_bytes(group, head_dim, multiprocessors, prefills_too=prefills_too)
