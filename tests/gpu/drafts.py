"""Drafts on a GPU: their kernels against the references, answers beside those without, and what a head gains at most.

usage: python -m tests.gpu.drafts [--seconds 120] [--device cuda:0]

A head is made to agree with its model: the last norms of both give zeros, so that both say the first token of all. A
step with drafts then takes as long as any, and gains a token for each stream. `breaks even` is how many of the drafts
must be accepted for a step to be worth its time.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from appliance.engine.engine import Engine
from appliance.protocol import StepKind
from kernels.cases import error
from kernels.variants import Variant
from tests.gpu.bench.precompile import precompile
from tests.parity.conftest import generate, make_engine, prompts, tokens
from tests.tiny import aligned, write_checkpoint

OPS = ("causal_conv", "delta_rule", "compressor", "compressed_attention")
# A tenth of Qwen3.5 27B's layers' weights, 12 of them with three of attention.
SIZES: dict[str, Any] = {
    "hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 12, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "vocab_size": 32000,
    "max_position_embeddings": 4096, "mtp_num_hidden_layers": 1,
}  # fmt: skip
STREAMS = (1, 8, 32)
TOKENS = 128
# Nats, and a share of the tokens: a wrong text is off by some nats in all of them.
NEARLY_AS_LIKELY, LESS_LIKELY = 0.3, 0.05


def of_models(device: torch.device) -> list[Variant]:
    """What is launched below, compiled at once; the rest compiles as it is launched."""
    major, minor = torch.cuda.get_device_capability(device)
    found: list[Variant] = []
    for op in (*OPS, "rms_norm", "gated_norm", "paged_attention", "rotary_cache", "embedding", "sampling", "linear"):
        declared = importlib.import_module(f"kernels.{op}.variants").variants(10 * major + minor)
        found += [each for each in declared if "fp16" not in each.name and ("fp8" not in each.name or op in OPS[2:])]
    return [each for each in found if "HEAD_DIM" not in each.name or "HEAD_DIM=256" in each.name]


def kernels(device: torch.device) -> None:
    major, minor = torch.cuda.get_device_capability(device)
    for op in OPS:
        reference, triton, cases = (
            importlib.import_module(f"kernels.{op}.{part}") for part in ("reference", "triton", "cases")
        )
        for case in cases.cases(10 * major + minor):
            if (
                not any(word in case.name for word in ("chains", "drafts=2", "2 drafts"))
                or "float16" in case.name.split()
            ):
                continue
            found, expected = (case.run(getattr(each, op), device) for each in (triton, reference))
            worst = max(error(*pair) for pair in zip(found, expected, strict=True))
            print(f"{op:>22} {worst:.1e} of {case.tolerance:.1e}   {case.name}", flush=True)
            assert worst <= case.tolerance, case.name


def engine_of(folder: Path, device: str, **changes: Any) -> Engine:
    engine = make_engine(
        folder, device=device, dtype="bfloat16", kv_cache_dtype="bfloat16", max_model_len=2048,
        max_num_seqs=max(STREAMS), max_num_batched_tokens=1024, num_blocks=max(STREAMS) * 40, enforce_eager=False,
        **changes,
    )  # fmt: skip
    count = 0
    while engine.capture_next():
        count += 1
    print(
        f"{count + 3} shapes captured, {engine._caches.states.shape[1] / 2**20:.1f} MiB of states a sequence",
        flush=True,
    )
    return engine


MTP: dict[str, Any] = {"drafts": "mtp", "num_speculative_tokens": 1}


def agreement(plain: Engine, drafting: Engine) -> None:
    """Of greedy answers with drafts: without, each token is the likeliest, or as likely but for rounding. A step with
    drafts has other batch sizes, so that of two tokens that are nearly as likely either may come first."""
    asked = prompts(12, (3, 20, 61))
    written = {name: tokens(told) for name, told in generate(drafting, asked, logprobs=None).items()}
    whole = {name: asked[name] + found for name, found in written.items()}
    gaps = []
    for name, (output, *_) in generate(plain, whole, max_tokens=1, prompt_logprobs=1).items():
        scores = output.prompt_logprobs
        assert scores is not None
        behind = slice(len(asked[name]) - 1, None)  # the first score is of the second token
        pairs = zip(scores.logprobs[behind], scores.top_logprobs[behind], strict=True)
        gaps += [likeliest - own for own, likeliest in pairs]
    less = sum(gap > NEARLY_AS_LIKELY for gap in gaps) / len(gaps)
    drafts = drafting.scheduler.drafts
    assert drafts is not None
    steps = {kind.value: count for kind, count in drafting.steps.items() if count}
    print(
        f"{less:.1%} of {len(gaps)} tokens are less likely without drafts; {drafts.num_drafted} drafted, "
        f"{drafts.num_accepted} accepted; {steps}",
        flush=True,
    )
    assert less <= LESS_LIKELY
    assert drafting.steps[StepKind.GRAPH] > 20


def seconds_of(engine: Engine, streams: int) -> tuple[float, int]:
    asked = {f"{streams}-{number}-{time.perf_counter()}": [7] * 64 for number in range(streams)}
    before, started = sum(engine.steps.values()), time.perf_counter()
    generate(engine, asked, max_tokens=TOKENS, logprobs=None)
    return time.perf_counter() - started, sum(engine.steps.values()) - before


def gain(plain: Engine, drafting: Engine) -> None:
    for engine in (plain, drafting):
        model: Any = engine._runner._model
        model.norm.weight.fill_(-1)
    model.drafter.norm.weight.fill_(-1)
    print(" streams     tok/s  ms/step | drafts tok/s  ms/step   gain  breaks even")
    for streams in STREAMS:
        for engine in (plain, drafting):
            seconds_of(engine, streams)
        (took, steps), (drafted, fewer) = (
            min(seconds_of(engine, streams) for _ in range(2)) for engine in (plain, drafting)
        )
        total, step, verified = streams * TOKENS, took / steps * 1e3, drafted / fewer * 1e3
        print(
            f"{streams:>8} {total / took:>9.0f} {step:>8.2f} | {total / drafted:>12.0f} {verified:>8.2f} "
            f"{took / drafted:>6.2f} {verified / step - 1:>12.0%}", flush=True,
        )  # fmt: skip
    drafts = drafting.scheduler.drafts
    assert drafts is not None
    print(f"{drafts.num_accepted} of {drafts.num_drafted} drafts accepted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=120.0, help="further families begin before that only")
    parser.add_argument("--sizes", action="store_true", help="small ones, to try this program")
    options = parser.parse_args()
    started = time.perf_counter()

    def passed(what: str) -> None:
        print(f"--- {time.perf_counter() - started:.0f} s: {what}", flush=True)

    if options.device != "cpu":
        precompile(of_models(torch.device(options.device)))
        passed("compiled")
        kernels(torch.device(options.device))
    passed("kernels")
    with tempfile.TemporaryDirectory() as folder:
        small = aligned("qwen3_5") | {"mtp_num_hidden_layers": 1}
        sizes = small if options.sizes else SIZES
        checkpoint = write_checkpoint(Path(folder) / "m", "qwen3_5", dtype="bfloat16", scale=0.02, repeat=True, **sizes)
        passed("a checkpoint of Qwen3.5")
        plain, drafting = engine_of(checkpoint, options.device), engine_of(checkpoint, options.device, **MTP)
        passed("engines")
        agreement(plain, drafting)
        passed("answers")
        gain(plain, drafting)
        passed("gain")
        del plain, drafting
        for family in ("deepseek_v32", "glm_moe_dsa", "deepseek_v3"):
            if time.perf_counter() - started > options.seconds:
                break
            values = aligned(family) | {"num_nextn_predict_layers": 1}
            if "index_topk" in values:
                values["index_topk"] = 64
            checkpoint = write_checkpoint(Path(folder) / family, family, dtype="bfloat16", scale=0.1, **values)
            agreement(*(engine_of(checkpoint, options.device, **changes) for changes in ({}, MTP)))
            passed(family)


if __name__ == "__main__":
    main()
