"""Time the native engine without its front door, on a random checkpoint: output tokens a second at several batch sizes.

usage: python -m tests.gpu.time_engine [--family qwen3_moe] [--fp8] [--device cuda:0] [--hidden 1024] [--layers 16] ...
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import torch

from appliance.engine.engine import Engine
from tests.parity.conftest import generate, make_engine
from tests.tiny import FAMILIES, FP8, write_checkpoint


def report_graphs(engine: Engine) -> None:
    """Capture all graphs, and print what each takes."""
    free, _ = torch.cuda.mem_get_info()
    started, count = time.perf_counter(), 0
    while engine.capture_next():
        count += 1
    torch.cuda.synchronize()
    if count:
        taken = free - torch.cuda.mem_get_info()[0]
        seconds = time.perf_counter() - started
        print(f"{count} graphs: {taken / count / 2**20:.2f} MiB and {seconds / count * 1e3:.0f} ms each")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--family", default="llama", choices=FAMILIES)
    parser.add_argument("--fp8", action="store_true", help="weights in blocks of FP8")
    parser.add_argument("--kv-cache-dtype", help="as torch names it, such as float8_e4m3fn; that of --dtype by default")
    parser.add_argument("--config", type=json.loads, default={}, metavar="JSON", help="other keys of config.json")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_checkpoint(
            Path(folder) / "model",
            options.family,
            dtype=options.dtype,
            scale=0.02,
            **{
                "hidden_size": options.hidden,
                "intermediate_size": options.hidden * 3,
                "moe_intermediate_size": options.hidden,
                "num_hidden_layers": options.layers,
                "head_dim": 64,
                "num_attention_heads": options.hidden // 64,
                "num_key_value_heads": max(options.hidden // 256, 1),
                "vocab_size": options.vocab,
                "max_position_embeddings": 4096,
                "quantization_config": FP8 if options.fp8 else None,
            }
            | options.config,
        )
        engine = make_engine(
            checkpoint,
            device=options.device,
            dtype=options.dtype,
            kv_cache_dtype=options.kv_cache_dtype or options.dtype,
            max_model_len=2048,
            max_num_seqs=max(options.batch),
            max_num_batched_tokens=4096,
            num_blocks=max(options.batch) * 16 + 128,
            enforce_eager=options.eager,
        )
        report_graphs(engine)
        rng = random.Random(0)
        generate(engine, {"warm": [5] * 64}, max_tokens=8, logprobs=None)
        print(
            f"{'streams':>8} {'tok/s':>10} {'ms/step':>9}   (64 tokens in, 64 out, {options.device}, {options.dtype})"
        )
        for size in options.batch:
            asked = {f"{size}-{i}": [rng.randrange(10, options.vocab) for _ in range(64)] for i in range(size)}
            started = time.perf_counter()
            generate(engine, asked, logprobs=None)
            seconds = time.perf_counter() - started
            print(f"{size:>8} {size * 64 / seconds:>10.0f} {seconds / 64 * 1e3:>9.2f}")


if __name__ == "__main__":
    main()
