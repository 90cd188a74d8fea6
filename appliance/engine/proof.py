"""`python -m appliance.engine.proof --cast DIR --config JSON --reference JSON`: a real model's forward passes,
sealed, for `ingot verify`.

It generates with `config`, and compares the log probabilities with those of `reference`: the same model in float32 on
the CPU. Its results go to stdout, a JSON line each, as those of `kernels.cast.prove`.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path

import msgspec

from appliance.checkpoint.config import read_config
from appliance.core_protocol import EngineConfig, SamplingParams, Submit
from kernels.cast.prove import say
from kernels.cast.watch import Watch
from kernels.cast.words import ForwardProof

# Of prompts: one that is decoded at once, one within a page or two, one of several chunks.
LENGTHS = (1, 20, 45, 400)
NEW_TOKENS = 8
# The mean difference of log probabilities, in nats: bfloat16 on a CPU has up to 0.07, a wrong kernel several.
TOLERANCE = 0.25


def main() -> None:
    watch = Watch()
    parser = argparse.ArgumentParser(prog="python -m appliance.engine.proof", description=__doc__)
    parser.add_argument("--cast", type=Path, required=True)
    parser.add_argument("--config", type=_config, required=True)
    parser.add_argument("--reference", type=_config, required=True)
    options = parser.parse_args()

    from kernels.seal import seal

    seal(options.cast)
    watch.listen_to_triton()
    import torch

    torch.zeros(1, device=options.config.device)
    watch.device_opened()
    say(_forward(options.config, options.reference))
    say(watch.seen())


def _config(text: str) -> EngineConfig:
    return msgspec.json.decode(text, type=EngineConfig)


def _forward(config: EngineConfig, reference: EngineConfig) -> ForwardProof:
    vocab = read_config(Path(config.model_folder)).vocab_size
    rng = random.Random(0)
    prompts = [[rng.randrange(2, vocab) for _ in range(length)] for length in LENGTHS]
    found, expected = _generate(config, prompts, vocab), _generate(reference, prompts, vocab)
    problems = [
        f"the prompt of {len(prompt):,} tokens got {len(outputs)} tokens instead of {NEW_TOKENS}"
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
        problems.append(f"log probabilities are off by {error:.1e}; rounding explains at most {TOLERANCE:.0e}")
    return ForwardProof(
        tokens=sum(map(len, found)),
        error=error,
        tolerance=TOLERANCE,
        backends=config.backends,
        problems=tuple(problems),
    )


def _generate(config: EngineConfig, prompts: list[list[int]], vocab: int) -> list[list[dict[int, float]]]:
    """For each prompt and each of its new tokens the log probability of every token."""
    from appliance.engine.engine import Engine

    engine = Engine(config, lambda _: None, lambda _: None)
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, logprobs=vocab)
    for number, prompt in enumerate(prompts):
        refused = engine.submit(Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
        assert refused is None, refused
    found: list[list[dict[int, float]]] = [[] for _ in prompts]
    while not engine.idle:
        for output in engine.step():
            found[int(output.request_id)] += [dict(logprob.top) for logprob in output.logprobs]
    return found


if __name__ == "__main__":
    main()
