"""Every backend of vLLM's that may be chosen is one that vLLM can be made to use."""

from __future__ import annotations

import pytest

from appliance.vllm.backends import OPTIONS, options_of
from kernels import faults
from kernels.catalogue import OPS


def test_every_backend_of_vllm_has_its_options_and_no_other_has() -> None:
    """A row of the catalogue without an entry would be chosen and never asked for."""
    catalogue = {(op.name, backend.name) for op in OPS for backend in op.of("vllm")}
    assert {(op, backend) for op, backends in OPTIONS.items() for backend in backends} == catalogue


def test_only_what_vllm_cannot_be_made_to_use_has_no_option() -> None:
    """And no such backend is ever chosen."""
    without = {
        backend.name: backend.faults
        for op in OPS
        for backend in op.of("vllm")
        if not (options_of(op.name, backend.name).arguments or options_of(op.name, backend.name).environment)
    }
    assert without == {"tilelang": (faults.NO_TILELANG_IN_VLLM,)}


@pytest.mark.parametrize("op", [op for op in OPS if op.of("vllm")], ids=lambda op: op.name)
def test_the_backends_of_an_op_are_told_apart_by_the_same_flags(op) -> None:
    """So that choosing one undoes the choice of another."""
    told = [options for options in OPTIONS[op.name].values() if options.arguments or options.environment]
    assert len({(*options.arguments, *options.environment) for options in told}) == 1
    assert len({(*options.arguments.values(), *options.environment.values()) for options in told}) == len(told)


def test_deep_gemm_is_kept_from_its_warm_up_by_both_variables() -> None:
    """vLLM #41849: either alone leaves a way into it."""
    assert options_of("deep_gemm_warmup", "skip").environment == {
        "VLLM_USE_DEEP_GEMM": "0",
        "VLLM_DEEP_GEMM_WARMUP": "skip",
    }
    assert options_of("fused_moe", "flashinfer-cutlass").arguments == {"moe-backend": "flashinfer_cutlass"}
    assert options_of("delta_rule", "triton").arguments == {"gdn-prefill-backend": "triton"}
