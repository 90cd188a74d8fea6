"""Kernels keep their values in registers: what a thread has in local memory is recorded, warned of, and small.

With INGOT_ALL_ARCHITECTURES=1 `test_architectures.py` looks at every kernel of every architecture; here it is
attention, which is where tiles are largest, on an architecture of each of its tables. sm_86 and sm_120 share one, and
differ in an FP8 cache alone: sm_86 reads bytes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance.cast.cast_command import cast as cast_command
from kernels.cast import manifest
from kernels.cast.architectures import ARCHITECTURES
from kernels.cast.build import build
from kernels.mla_attention import SHAPES
from kernels.mla_attention import variants as mla_variants
from kernels.paged_attention import variants
from kernels.variants import Variant, variant
from tests.cast.casting import order
from tests.cast.spills import unexpected


def attention(arch: int) -> list[Variant]:
    """Of the larger heads and of most heads of latents, whose tiles fill the registers."""
    caches = (True,) if arch == 86 else (False, True)
    sizes = [(dim, fp8) for dim in (128, 256) for fp8 in caches]
    prefills = [variants.prefill(arch, "bfloat16", dim, fp8, False) for dim, fp8 in sizes]
    latent = mla_variants.decode("bfloat16", SHAPES[0], mla_variants.decode_tiles(arch)[-1])
    return [*prefills, latent, *(variants.decode(arch, "bfloat16", 256, fp8, False, 16) for fp8 in caches)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["sm_80", "sm_86", "sm_90", "sm_120"])
def test_attention_stays_in_registers(tmp_path: Path, name: str):
    outcome = build(order(tmp_path / "cast", attention(ARCHITECTURES[name].number), name), lambda _: None)
    assert outcome.failed == {}
    assert unexpected(outcome.manifest) == []


def test_a_spill_is_recorded_and_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The tile that sm_80 once had: half as many columns fit."""
    tile = variants.FP8_PREFILL_TILES[variants.memory_of(80)]
    monkeypatch.setitem(tile, 128, variants.Tile(128, 64, 8, 2))
    spilling = variants.prefill(80, "bfloat16", 128, True, False)
    small = variant("odd", "tests.cast.odd_kernels:well_kernel", ("*fp32", "i32"), {"BLOCK": 128})
    monkeypatch.setattr("appliance.cast.cast_command.plan.triton_variants", lambda *_: (spilling, small))
    done = CliRunner().invoke(
        cast_command, ["--arch", "sm_80", "--out", str(tmp_path / "cast"), "--triton-only", "--jobs", "1"]
    )
    assert done.exit_code == 0, done.output
    found = manifest.parse((tmp_path / "cast" / manifest.NAME).read_bytes(), tmp_path)
    (recorded,) = found.spilling
    assert recorded.name == spilling.name
    assert recorded.stack > 1000
    (warning,) = [line for line in done.output.splitlines() if line.startswith("Warning:")]
    assert spilling.name in warning
    assert f"{recorded.stack}" in warning.replace(",", "")
