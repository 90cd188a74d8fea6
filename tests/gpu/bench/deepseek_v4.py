"""`python -m tests.gpu.bench.deepseek_v4`: DeepSeek V4 Flash on this GPU. Its own ops at 64 x 8,192 tokens, and a model
of its shape with few layers, with graphs, from which the time of 43 layers follows. The last line is one JSON object,
{figure: {value, goal, ok}}.

With `tune`, tiles of experts in MXFP4 instead, for `kernels/fused_moe`, and of few tokens by weights in FP8, for
`kernels/fp8_linear`; with `tune attention` also those of compressed attention, and its parts.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor

from appliance.checkpoint.config import read_config
from appliance.checkpoint.selection import selection_context
from appliance.engine.cache import Caches
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch
from appliance.models.registry import build
from kernels.binding import bind
from kernels.cast.plan import triton_variants
from kernels.catalogue import OPS
from kernels.compressed_attention import cases, triton, variants
from kernels.context import Context
from kernels.fp8_linear import triton as fp8_linear
from kernels.fp8_linear import variants as fp8_variants
from kernels.fp8_linear.variants import FewTile
from kernels.fused_moe import triton as fused_moe
from kernels.fused_moe import variants as fused_moe_variants
from kernels.indexer import cases as indexer_cases
from kernels.indexer import key_bytes
from kernels.indexer import triton as indexer
from kernels.launch import architecture
from kernels.libraries import installed
from kernels.packed_entries import entry_bytes
from kernels.packed_entries.variants import DIM, ROPE
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.variants import Tile
from kernels.selection import chosen_names, explain
from kernels.split_products import processors
from tests.gpu.bench.ceilings import Ceilings, measure
from tests.gpu.bench.precompile import precompile

FLASH: Final[dict[str, Any]] = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 129280, "hidden_size": 4096,
    "moe_intermediate_size": 2048, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
    "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 6, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus", "num_hash_layers": 0, "swiglu_limit": 10.0, "compress_rope_theta": 160000.0,
    "rope_theta": 10000.0, "max_position_embeddings": 1048576, "sliding_window": 128, "index_n_heads": 64,
    "index_head_dim": 128, "index_topk": 512, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6, "num_nextn_predict_layers": 0, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
                            "scale_fmt": "ue8m0", "activation_scheme": "dynamic"},
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                     "beta_slow": 1},
}  # fmt: skip
LAYERS: Final = 43
STREAMS: Final = (1, 8, 32)
# Published: 100 tokens a second at one stream on two RTX PRO 6000, of 1.79 TB/s each (vLLM #40991); an H100 has 3.35.
PUBLISHED, THEIRS, OURS = 100.0, 2 * 1.79, 3.35
TILES: Final = ((64, 64, 8, 2), (64, 64, 8, 1))
SPLITS: Final = (128, 192, 320)
ROWS: Final = ((16, 512, 4), (32, 512, 4), (16, 256, 2), (8, 1024, 4), (16, 1024, 8), (32, 256, 4), (8, 512, 2))
SEEN: Final = 128 + 512
# Rows and columns of a layer's weights in FP8, and in how many groups.
IN_FP8: Final = (("wq_a, wkv", 1536, 4096, 1), ("wq_b", 32768, 1024, 1), ("indexer.wq_b", 8192, 1024, 1),
                 ("wo_a", 8192, 4096, 8), ("wo_b", 4096, 8192, 1), ("shared w1, w3", 4096, 4096, 1),
                 ("shared w2", 4096, 2048, 1))  # fmt: skip
FEW_TILES: Final = tuple(
    FewTile(outputs, warps, stages, True)
    for outputs, warps in ((64, 4), (128, 4), (128, 8))
    for stages in (3, 4, 5, 6, 8)
)


def main() -> None:
    device = torch.device("cuda")
    ceilings = measure(device)
    print(f"copy {ceilings.copy / 1e12:.2f} TB/s, bf16 {ceilings.bf16 / 1e12:.0f} Tflop/s")
    if "tune" in sys.argv[1:]:
        tune(device, ceilings)
        return
    figures = {**ops(device, ceilings), **served(device)}
    print(json.dumps(figures))


def figure(value: float, goal: float) -> dict[str, Any]:
    return {"value": round(value, 3), "goal": round(goal, 3), "ok": value >= goal}


def decodes(device: torch.device, sequences: int = 64, context: int = 8192) -> tuple[cases.Batch, int]:
    """Of layers with an indexer, and the bytes that they need to move: each entry that is seen, queries and results."""
    made = cases.batch(cases.Shape((1,) * sequences, (context,) * sequences, 64, 4, 512), torch.bfloat16, device)
    return made, sequences * SEEN * entry_bytes(DIM, ROPE) + 2 * made.query.nbytes + sequences * 512 * 4


def ops(device: torch.device, ceilings: Ceilings) -> dict[str, Any]:
    made, moved = decodes(device)
    seconds = graph_s(partial(triton.compressed_attention, *made, 128))
    products = 4.0 * 64 * 64 * SEEN * DIM / ceilings.bf16
    floors = f"bytes take {moved / ceilings.copy * 1e6:.1f} us, products {products * 1e6:.1f} us"
    print(f"sparse decode, 64 x 8192: {seconds * 1e6:.0f} us; {floors}")
    found = {"sparse decode, share of copy": figure(moved / ceilings.copy / seconds, 0.70)}
    for ratio, top_k, mxfp4 in ((4, 512, False), (4, 512, True), (1, 2048, False)):
        shape = indexer_cases.Shape((1,) * 64, (8192,) * 64, 64, top_k, 256, ratio, mxfp4)
        batch = indexer_cases.batch(shape, device)
        seconds = graph_s(partial(indexer.indexer, *batch, top_k, ratio))
        keys = 64 * 8192 // ratio
        moved = keys * key_bytes(128, mxfp4) + batch.query.nbytes + 64 * top_k * 4
        products = ceilings.bf16 if mxfp4 else ceilings.fp8 or ceilings.bf16
        bound = max(moved / ceilings.copy, 2.0 * keys * 64 * 128 / products)
        kind = f"{ratio}{' in MXFP4' * mxfp4}"
        print(f"indexer, 64 x 8192, a key of {kind}: {seconds * 1e6:.0f} us, bound {bound * 1e6:.1f} us")
        found[f"indexer of {kind}, share of what binds"] = figure(bound / seconds, 0.60)
    for tokens in (1, 8):
        for name, call, read in products_in_fp8(device, tokens):
            seconds = graph_s(call)
            print(f"{name}, {tokens} tokens: {seconds * 1e6:.1f} us, {read / ceilings.copy / seconds:.0%} of copy")
    made = cases.batch(cases.Shape((2048,), (8192,), 64, 4, 512), torch.bfloat16, device)
    seconds = graph_s(partial(triton.compressed_attention, *made, 128))
    rate = 4.0 * 2048 * 64 * SEEN * DIM / seconds
    print(f"sparse prefill, 2048 of 8192: {seconds * 1e3:.2f} ms, {rate / 1e12:.0f} Tflop/s")
    return found


def products_in_fp8(device: torch.device, tokens: int) -> Iterator[tuple[str, Callable[[], object], int]]:
    """Of a layer: each one's name, a call, and the bytes that it reads."""
    for name, outputs, inner, groups in IN_FP8:
        weight = torch.empty(outputs, inner, dtype=torch.float8_e4m3fn, device=device)
        _fill(weight)
        scale = torch.full((outputs // 128, inner // 128), 0.01, device=device)
        x = torch.randn(tokens, groups * inner, dtype=torch.bfloat16, device=device)
        yield name, partial(fp8_linear.fp8_linear, x, weight, scale, groups=groups), weight.nbytes


def served(device: torch.device) -> dict[str, Any]:
    """Steps of decodes at a context of 640, by the difference of four layers and two; layers with the window alone
    count as others do."""
    found: dict[str, Any] = {}
    for experts in ("fp8", "fp4"):
        for streams, (two, four) in step_times(device, experts).items():
            each = (four - two) / 2
            whole = two + (LAYERS - 2) * each
            print(f"{experts} experts, {streams} streams: 2 layers {two * 1e3:.3f} ms, 4 layers {four * 1e3:.3f} ms; "
                  f"43 layers {two * 1e3:.2f} + 41 x {each * 1e3:.3f} = {whole * 1e3:.2f} ms, "
                  f"{streams / whole:.0f} tok/s")  # fmt: skip
            if streams == 1:
                goal = PUBLISHED * OURS / THEIRS
                print(
                    f"  published {PUBLISHED:.0f} tok/s at {THEIRS:.2f} TB/s: x {OURS:.2f} / {THEIRS:.2f} = {goal:.0f}"
                )
                found[f"one stream of 43 layers, {experts} experts, tok/s"] = figure(1 / whole, goal)
    return found


def step_times(device: torch.device, experts: str) -> dict[int, tuple[float, float]]:
    """Seconds of a step with two layers and with four, by streams."""
    with tempfile.TemporaryDirectory() as folder:
        changes = {"num_hidden_layers": 4, "compress_ratios": [4, 128, 4, 128], "expert_dtype": experts}
        (Path(folder) / "config.json").write_text(json.dumps(FLASH | changes))
        config = read_config(Path(folder))
    context = selection_context(
        config, device="cuda", capability=torch.cuda.get_device_capability(), dtype="bfloat16",
        kv_cache_dtype="bfloat16", cuda_graphs=True, libraries=installed(),
    )  # fmt: skip
    assert context.mxfp4_experts == (experts == "fp4")
    backends = chosen_names(explain(OPS, context))
    print({op: name for op, name in backends.items() if name != "triton"})
    precompile(_of_model(context))
    model: Any = build(BuildContext(config, bind(backends), device, torch.bfloat16, 2048, keep_fp8=True))
    for tensor in model.destinations().values():
        _fill(tensor)
    model.prepare()
    caches = Caches(config.caches_of_layers, num_blocks=160, block_size=256, dtype=torch.bfloat16, device=device,
                    state_rows=40, state_dtype=torch.bfloat16)  # fmt: skip
    layers, times = model.layers, {}
    for streams in STREAMS:
        of_each = []
        for count in (2, 4):
            model.layers = layers[:count]
            of_each.append(_step_time(model, caches, streams, device))
        times[streams] = (of_each[0], of_each[1])
    return times


def _of_model(context: Context) -> list[Any]:
    return list(triton_variants(architecture(), [context]))


def _fill(tensor: Tensor) -> None:
    if tensor.dtype in (torch.float8_e4m3fn, torch.uint8, torch.int8):
        tensor.view(torch.uint8).random_(0x18, 0x38)
    elif tensor.dtype == torch.float8_e8m0fnu:
        tensor.view(torch.uint8).random_(116, 121)
    elif tensor.dtype == torch.int64:
        tensor.random_(0, 256)
    else:
        tensor.normal_(0, 0.02)


@torch.inference_mode()
def _step_time(model: Any, caches: Caches, streams: int, device: torch.device) -> float:
    """Of a step that a graph holds: the mean of four steps, of which one completes an entry of four tokens."""
    length, blocks = 640, 3
    starts = torch.arange(streams + 1, dtype=torch.int32, device=device)
    lens = torch.full((streams,), length, dtype=torch.int32, device=device)
    tables = torch.arange(streams * blocks, dtype=torch.int32, device=device).view(streams, blocks)
    metadata = AttentionMetadata([1] * streams, [1024] * streams, streams, starts, lens, tables, starts[1:].long())
    ids = torch.randint(0, 1000, (streams,), device=device)
    batch = ForwardBatch(ids, lens.long() - 1, metadata, torch.arange(streams, device=device))

    def step() -> Tensor:
        return model.compute_logits(model.forward(batch, caches.layers[: len(model.layers)])).argmax(-1)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    if streams == 1 and len(model.layers) > 2:
        _report_kernels(graph)
    found = []
    for later in range(1, 5):
        lens.fill_(length + later)
        batch.positions.fill_(length + later - 1)
        found.append(_replay_s(graph))
    return sum(found) / len(found)


def _report_kernels(graph: torch.cuda.CUDAGraph) -> None:
    """Those that take longest in a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    print(f"  {sum(event.count for event in events) / 10:.0f} kernels a step")
    for event in events[:32]:
        print(f"  {event.self_device_time_total / 10:8.1f} us in {event.count / 10:5.1f} of {event.key[:90]}")


def graph_s(call: Callable[[], object]) -> float:
    """Seconds of one call within a graph, its inputs not in the L2 cache: what a graph takes that writes a larger
    memory before, without the time of that."""
    flushed = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    call()
    found = []
    for with_call in (True, False):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(4):
                flushed.zero_()
                if with_call:
                    call()
        found.append(_replay_s(graph) / 4)
    return found[0] - found[1]


def _replay_s(graph: torch.cuda.CUDAGraph) -> float:
    times = []
    for _ in range(30):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def tune(device: torch.device, ceilings: Ceilings) -> None:
    tune_fp8(device, ceilings)
    tune_experts(device, ceilings)
    if "attention" in sys.argv[1:]:
        tune_attention(device, ceilings)


def experts_in_fp4(device: torch.device, tokens: int) -> tuple[Callable[[], object], float]:
    """A call, and the bytes of the weights that it reads."""
    codes = [torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
             for shape in ((256, 4096, 2048), (256, 4096, 1024))]  # fmt: skip
    scales = [torch.full((256, 4096, columns), 120, dtype=torch.uint8, device=device).view(torch.float8_e8m0fnu)
              for columns in (128, 64)]  # fmt: skip
    x = torch.randn(tokens, 4096, dtype=torch.bfloat16, device=device)
    ids = torch.stack([torch.randperm(256, device=device)[:6] for _ in range(tokens)]).int()
    weights = torch.rand(tokens, 6, device=device)
    read = len(ids.unique()) * 4096 * (2048 + 1024) * 17 / 16
    up, down = codes
    up_scale, down_scale = scales
    return partial(fused_moe.fused_moe, x, weights, ids, up, down, up_scale, down_scale, "silu", 10.0), read


def tune_fp8(device: torch.device, ceilings: Ceilings) -> None:
    """Of one token, with the tiles of `FEW_TILES` and as many programs for each processor as `splits` says."""
    precompile([fp8_variants.of_few("bfloat16", tile, split) for tile in FEW_TILES for split in (False, True)])
    for name, call, read in products_in_fp8(device, 1):
        for tile, each in itertools.product(FEW_TILES, (1, 2, 3)):
            fp8_linear._plan_of_few.cache_clear()
            counted = processors() * each // 3
            with (
                mock.patch.dict(fp8_variants.FEW, {architecture(): tile}),
                mock.patch.object(fp8_linear, "processors", lambda counted=counted: counted),
            ):
                seconds = graph_s(call)
            share = read / ceilings.copy / seconds
            print(f"{name} {tile}, {each} a processor: {seconds * 1e6:.1f} us, {share:.0%} of copy")
    fp8_linear._plan_of_few.cache_clear()


def tune_experts(device: torch.device, ceilings: Ceilings) -> None:
    tiles = [fused_moe_variants.Tile(1, 1, n, k, warps, 1) for n, k, warps in ROWS] + [fused_moe_variants.MXFP4[1]]
    precompile([fused_moe_variants.mxfp4_product("bfloat16", tile, kind) for tile in tiles for kind in ("silu", "")])
    for tokens in (1, 8, 32):
        call, read = experts_in_fp4(device, tokens)
        for tile in tiles:
            with mock.patch.object(fused_moe_variants, "mxfp4_tile_of", lambda *_, tile=tile: tile):
                seconds = graph_s(call)
            print(f"{tokens} tokens {tile}: {seconds * 1e6:.1f} us, {read / ceilings.copy / seconds:.0%} of copy")


def tune_attention(device: torch.device, ceilings: Ceilings) -> None:
    arch = architecture()
    tiles = [Tile(*tile) for tile in TILES]
    precompile([variants.attend(arch, "bfloat16", tile, decodes, True) for tile in tiles for decodes in (True, False)])
    for sequences in (64, 32, 8, 1):
        made, moved = decodes(device, sequences)
        for tile, split in itertools.product(tiles, SPLITS):
            with mock.patch.multiple(triton, _tile=lambda *_, tile=tile: tile, SPLIT=split, SPLIT_ON_HOPPER=split):
                try:
                    seconds = graph_s(partial(triton.compressed_attention, *made, 128))
                except Exception as problem:  # noqa: BLE001 - what does not fit is this tile's result
                    print(f"{sequences} {tuple(tile)} {split}: {str(problem)[:80]}")
                    continue
            share = moved / ceilings.copy / seconds
            print(f"{sequences} {tuple(tile)} {split}: {seconds * 1e6:.1f} us {share:.0%} of copy")
    made = cases.batch(cases.Shape((1024,), (8192,), 64, 4, 512), torch.bfloat16, device)
    for tile in tiles:
        with mock.patch.multiple(triton, _tile=lambda *_, tile=tile: tile):
            try:
                seconds = graph_s(partial(triton.compressed_attention, *made, 128))
            except Exception as problem:  # noqa: BLE001 - as above
                print(f"prefill {tuple(tile)}: {str(problem)[:80]}")
                continue
        rate = 4.0 * 1024 * 64 * SEEN * DIM / seconds
        print(f"prefill {tuple(tile)}: {seconds * 1e3:.2f} ms, {rate / 1e12:.0f} Tflop/s")


if __name__ == "__main__":
    main()
