"""Which modules of FlashInfer are compiled ahead for vLLM."""

from __future__ import annotations

import pytest

from kernels.cast.architectures import ARCHITECTURES
from kernels.vllm_modules import MODULES, modules


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_what_every_model_may_load_is_for_every_architecture(architecture):
    usual = [module.name for module in modules(architecture.number)]
    assert usual == [module.name for module in MODULES if module.usual]
    assert "sampling" in usual  # vLLM takes FlashInfer's sampler unless it is told not to
    everything = [module.name for module in modules(architecture.number, ["all"])]
    assert set(usual) <= set(everything)
    for stem, least in (("fused_moe_", 90), ("fp4_quantization_", 100), ("fp4_gemm_cutlass", 100)):
        of = [name for name in everything if name.startswith(stem)]
        assert len(of) == (architecture.number >= least), of


def test_one_can_be_named():
    assert [module.name for module in modules(90, ["norm", "fused_moe_90"])] == ["norm", "fused_moe_90"]
    assert [module.name for module in modules(120, ["fused_moe_90"])] == []
    with pytest.raises(ValueError, match=r"nrom: no such module"):
        list(modules(90, ["nrom"]))


def test_names_and_generators_are_told_apart():
    assert len({module.name for module in MODULES}) == len({module.generator for module in MODULES}) == len(MODULES)
