"""`python -m tests.gpu.bench.tune_moe`: times tiles of the grouped products and of FP8 linear, for `variants.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from kernels.fp8_linear import variants as linear_variants
from kernels.fp8_linear.triton import fp8_linear, quantise
from kernels.fused_moe import variants
from kernels.fused_moe.sort import sort_by_expert
from kernels.fused_moe.triton import Products
from kernels.fused_moe.variants import Tile
from kernels.launch import architecture
from kernels.variants import Variant
from tests.gpu.bench.ceilings import median_s
from tests.gpu.bench.moe import MINIMAX, MIXTRAL, QWEN3, Batch, batch
from tests.gpu.bench.precompile import precompile

SHOWN = 6  # of the best
_ANY = 1 << 31
PLAIN_PREFILL = [
    Tile(_ANY, *tile)
    for tile in ((128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 256, 64, 8, 3, 4), (128, 256, 64, 8, 3, 16),
                 (128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (128, 128, 64, 4, 4),
                 (128, 128, 128, 8, 3), (64, 256, 64, 4, 4), (64, 256, 64, 4, 3), (64, 256, 64, 8, 4),
                 (64, 128, 64, 4, 4), (256, 128, 64, 8, 3), (256, 128, 64, 8, 4), (128, 256, 32, 8, 5))
]  # fmt: skip
PLAIN_DECODE = [
    Tile(_ANY, *tile)
    for tile in ((16, 128, 64, 4, 5), (16, 128, 128, 4, 3), (16, 128, 128, 4, 4), (16, 64, 128, 4, 4),
                 (16, 64, 128, 4, 5), (16, 64, 64, 4, 6), (16, 64, 256, 4, 3), (16, 32, 256, 4, 4),
                 (16, 128, 128, 8, 4), (16, 256, 64, 8, 4), (16, 64, 128, 8, 4), (16, 64, 128, 2, 4))
]  # fmt: skip
FP8_PREFILL = [
    Tile(_ANY, *tile)
    for tile in ((128, 128, 128, 8, 4), (128, 128, 128, 8, 3), (64, 128, 128, 8, 4), (64, 128, 128, 8, 3),
                 (64, 128, 128, 4, 3), (64, 128, 128, 4, 4), (128, 128, 128, 16, 3), (128, 128, 128, 16, 4),
                 (128, 128, 128, 8, 4, 16))
]  # fmt: skip
FP8_DECODE = [
    Tile(_ANY, *tile)
    for tile in ((16, 64, 128, 4, 5), (16, 64, 128, 4, 3), (16, 32, 128, 4, 5), (16, 32, 128, 4, 7),
                 (16, 32, 128, 2, 5), (16, 128, 128, 8, 4), (16, 128, 128, 4, 4), (16, 64, 128, 8, 5))
]  # fmt: skip
LINEAR_PREFILL = [
    linear_variants.Tile(*tile)
    for tile in ((128, 128, 128, 8, 4), (128, 128, 128, 8, 3), (128, 64, 128, 8, 3), (128, 64, 128, 8, 4),
                 (64, 128, 128, 8, 4), (64, 128, 128, 4, 4), (128, 64, 128, 4, 4), (128, 128, 128, 16, 4),
                 (128, 128, 128, 16, 3))
]  # fmt: skip
LINEAR_DECODE = [
    linear_variants.Tile(*tile)
    for tile in ((16, 32, 128, 4, 5), (16, 32, 128, 2, 5), (16, 16, 128, 2, 6), (16, 16, 128, 4, 6),
                 (16, 64, 128, 4, 5), (16, 64, 128, 8, 5), (16, 32, 128, 4, 8))
]  # fmt: skip


def main() -> None:
    device = torch.device("cuda")
    for model, tokens in ((QWEN3, 8192), (MIXTRAL, 4096), (MINIMAX, 16384)):
        _try_products(batch(device, model, tokens, fp8=False), f"{model.name} {tokens}", PLAIN_PREFILL)
        _try_products(batch(device, model, tokens, fp8=True), f"{model.name} {tokens}", FP8_PREFILL)
    for model, tokens in ((QWEN3, 1), (QWEN3, 64), (MIXTRAL, 16)):
        _try_products(batch(device, model, tokens, fp8=False), f"{model.name} {tokens}", PLAIN_DECODE)
        _try_products(batch(device, model, tokens, fp8=True), f"{model.name} {tokens}", FP8_DECODE)
    for outputs, inner in ((28672, 4096), (4096, 14336)):
        _try_linear(device, 8192, outputs, inner, LINEAR_PREFILL, (1,))
        _try_linear(device, 16, outputs, inner, LINEAR_DECODE, (1, 2, 4, 8))


def _try_products(given: Batch, name: str, tiles: list[Tile]) -> None:
    """Each product by itself, without quantising or sorting."""
    arch, fp8 = architecture(), given.gate_up_scale is not None
    precompile(
        variants.fp8_product(arch, "bfloat16", tile, activation) if fp8
        else variants.plain_product("bfloat16", tile, activation)
        for tile in tiles for activation in ("silu", "")
    )  # fmt: skip
    pairs, size = given.ids.numel(), given.down.shape[2]
    for label, activation, weight in (("gate_up", "silu", given.gate_up), ("down", "", given.down)):
        times = {tile: call for tile in tiles if (call := _product(given, tile, activation, arch, fp8))}
        flops = 2 * pairs * given.x.shape[1] * size * (2 if activation else 1)
        called = min(weight.shape[0], pairs) * weight[0].nbytes
        _show(f"{name}{' fp8' * fp8} {label}", times.items(), flops, called)


def _product(given: Batch, tile: Tile, activation: str, arch: int, fp8: bool) -> Callable[[], object]:
    """One product as `fused_moe` would launch it with `tile`."""
    x, weights, ids, gate_up, down, gate_up_scale, down_scale = given
    products = Products(sort_by_expert(ids, gate_up.shape[0], tile.block_m), weights, tile, torch.inf)
    inner = torch.randn(ids.numel(), down.shape[2], device=x.device, dtype=x.dtype)
    out = x.new_empty(ids.numel(), x.shape[1])
    if not fp8:
        a, b, target = (x, gate_up, inner) if activation else (inner, down, out)
        return lambda: products.plain_product(a, b, target, activation)
    rounded = linear_variants.activation_mode(arch, tile.block_m) == "rounded"
    first, second = (quantise(a) if rounded else (a, weights) for a in (x, inner))
    if activation:
        return lambda: products.fp8_product(*first, gate_up, gate_up_scale, *second, "bfloat16", activation)
    return lambda: products.fp8_product(*second, down, down_scale, out, weights, "bfloat16", "")


def _try_linear(
    device: torch.device,
    tokens: int,
    outputs: int,
    inner: int,
    tiles: list[linear_variants.Tile],
    splits: tuple[int, ...],
) -> None:
    x = torch.randn(tokens, inner, device=device, dtype=torch.bfloat16)
    weight = torch.randn(outputs, inner, device=device, dtype=torch.bfloat16).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-outputs // 128), -(-inner // 128), device=device)
    arch = architecture()
    precompile(_linear_variants(arch, tiles, splits))
    calls = {}
    for tile in tiles:
        for parts in splits:
            calls[tile, parts] = _linear(x, weight, scale, tile, parts)
    _show(f"fp8_linear {tokens} x {inner} x {outputs}", calls.items(), 2 * tokens * outputs * inner, weight.nbytes)


def _linear_variants(arch: int, tiles: list[linear_variants.Tile], splits: tuple[int, ...]) -> Iterator[Variant]:
    for tile in tiles:
        yield from (linear_variants.of(arch, "bfloat16", tile, split) for split in {parts > 1 for parts in splits})


def _linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, tile: linear_variants.Tile, splits: int
) -> Callable[[], object]:
    """`fp8_linear` as if its tables said so."""

    def call() -> object:
        before = linear_variants.tile_of, linear_variants.splits_of
        linear_variants.tile_of = lambda *_: tile
        linear_variants.splits_of = lambda *_: splits
        try:
            return fp8_linear(x, weight, scale)
        finally:
            linear_variants.tile_of, linear_variants.splits_of = before

    return call


def _show(name: str, calls: Iterable[tuple[object, Callable[[], object]]], flops: float, size: int) -> None:
    times = []
    for choice, call in calls:
        try:
            times.append((median_s(call, 60), str(choice)))
        except Exception as problem:  # noqa: BLE001 - a tile that cannot run is a result, too
            print(f"  {choice}: {type(problem).__name__}: {str(problem)[:100]}")
    for time, choice in sorted(times)[:SHOWN]:
        print(f"{name}: {choice} {time * 1e6:.1f} us, {flops / time / 1e12:.0f} TFLOP/s, "
              f"{size / time / 1e12:.2f} TB/s of weights", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
