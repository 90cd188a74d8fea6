"""`python -m appliance.engine.proof --cast DIR`: one real model's forward passes, sealed, for `ingot verify`.

It generates with the bundled model, or with another one, on the device, and compares the log probabilities with those
of the same model in float32 on the CPU. What it says goes to stdout, a JSON line each, as of `kernels.cast.prove`.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path

import msgspec

from kernels.cast.prove import say
from kernels.cast.watch import Watch
from kernels.cast.words import ForwardProof

BUNDLED = Path(__file__).parents[1] / "selftest" / "model"
# Of prompts: one that is decoded at once, one within a page or two, one of several chunks.
LENGTHS = (1, 20, 45, 400)
NEW_TOKENS = 8
# The mean difference of log probabilities, in nats: bfloat16 on a CPU has up to 0.07, a wrong kernel several.
TOLERANCE = 0.25


def main() -> None:
    watch = Watch()
    parser = argparse.ArgumentParser(prog="python -m appliance.engine.proof", description=__doc__)
    parser.add_argument("--cast", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=BUNDLED)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()

    from kernels.seal import seal

    manifest = seal(options.cast)
    watch.listen_to_triton()
    import torch

    torch.zeros(1, device=options.device)
    watch.device_opened()
    proof = _forward(options.model, options.device, options.dtype)
    if not manifest.models and torch.device(options.device).type == "cuda":
        proof = msgspec.structs.replace(proof, problems=(*proof.problems, *_without_kernels(proof)))
    say(proof)
    say(watch.seen())


def _forward(model: Path, device: str, dtype: str) -> ForwardProof:
    from appliance.checkpoint.config import read_config

    vocab = read_config(model).vocab_size
    rng = random.Random(0)
    prompts = [[rng.randrange(2, vocab) for _ in range(length)] for length in LENGTHS]
    found, backends = _generate(model, prompts, vocab, device=device, dtype=dtype)
    expected, _ = _generate(model, prompts, vocab, device="cpu", dtype="float32")
    problems = [
        f"the prompt of {len(prompt)} tokens got {len(outputs)} tokens instead of {NEW_TOKENS}"
        for prompt, outputs in zip(prompts, found, strict=True)
        if len(outputs) != NEW_TOKENS
    ]
    # Of the first token only: later ones follow from those before, which may differ where two were nearly equal.
    errors = [
        statistics.fmean(abs(ours[0][token] - theirs[0][token]) for token in range(vocab))
        for ours, theirs in zip(found, expected, strict=True)
        if ours and theirs
    ]
    error = max(errors, default=float("inf"))
    if not error <= TOLERANCE:
        problems.append(f"log probabilities are {error:.1e} off, and at most {TOLERANCE:.0e} is rounding")
    return ForwardProof(
        model=model.name if model != BUNDLED else "the bundled model",
        tokens=sum(map(len, found)),
        error=error,
        tolerance=TOLERANCE,
        backends=backends,
        problems=tuple(problems),
    )


def _generate(
    model: Path, prompts: list[list[int]], vocab: int, *, device: str, dtype: str
) -> tuple[list[list[dict[int, float]]], dict[str, str]]:
    """For each prompt and each of its new tokens the log probability of every token; and the backends."""
    from appliance.engine.engine import Engine
    from appliance.protocol import EngineConfig, SamplingParams, Submit

    backends, keep_fp8 = _chosen(model, device, dtype)
    config = EngineConfig(
        model_folder=str(model), device=device, dtype=dtype, kv_cache_dtype=dtype, max_model_len=512, max_num_seqs=8,
        max_num_batched_tokens=128, block_size=16, num_blocks=128, backends=backends, keep_fp8=keep_fp8,
    )  # fmt: skip
    engine = Engine(config, lambda _: None, lambda _: None)
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, logprobs=vocab)
    for number, prompt in enumerate(prompts):
        refused = engine.submit(Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
        assert refused is None, refused
    found: list[list[dict[int, float]]] = [[] for _ in prompts]
    while not engine.idle:
        for output in engine.step():
            found[int(output.request_id)] += [dict(logprob.top) for logprob in output.logprobs]
    return found, backends


def _chosen(model: Path, device: str, dtype: str) -> tuple[dict[str, str], bool]:
    """The backends that a launch would choose from this cast, and whether weights in FP8 stay so."""
    import torch

    from appliance.checkpoint.config import read_config
    from appliance.checkpoint.selection import selection_context
    from kernels.catalogue import OPS
    from kernels.libraries import installed
    from kernels.seal import sealed_to
    from kernels.selection import chosen_names, explain

    kind, cast = torch.device(device).type, sealed_to()
    context = selection_context(
        read_config(model),
        device=kind,
        capability=torch.cuda.get_device_capability(device) if kind == "cuda" else None,
        dtype=dtype,
        kv_cache_dtype=dtype,
        cuda_graphs=False,
        libraries=installed(),
        cast=cast.summary() if cast else None,
    )
    return chosen_names(explain(OPS, context)), context.fp8_blocks is not None


def _without_kernels(proof: ForwardProof) -> list[str]:
    """A whole cast has a kernel for every op of the bundled model."""
    from kernels.catalogue import OPS

    compiled = {op.name for op in OPS if any(backend.is_compiled for backend in op.of("native"))}
    return [
        f"{op} was computed by {backend}, although the cast has kernels for it"
        for op, backend in proof.backends.items()
        if op in compiled and backend == "torch"
    ]


if __name__ == "__main__":
    main()
