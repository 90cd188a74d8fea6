"""`python -m tests.gpu.measured_core CONFIG`: an engine in a process of its own, driven to its fullest; prints what
that took of the GPU, in MiB, as one line of JSON. `process` is what the driver says is gone since before the start.
How long each part took goes to stderr."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import torch

import appliance.engine.__main__  # noqa: F401  its settings of torch, which are read when it is first used
from appliance.core_protocol import EngineConfig, SamplingParams, Submit
from appliance.engine.engine import Engine
from kernels.seal import seal

MIB = 1 << 20


def main() -> None:
    config = msgspec.convert(json.loads(sys.argv[1]), EngineConfig)
    if config.cast is not None:
        seal(Path(config.cast))
    free_before = _driver_free()
    torch.zeros(1, device=config.device)
    torch.cuda.synchronize()
    context = free_before - _driver_free()
    engine = Engine(config, lambda _: None, lambda line: print(line, file=sys.stderr))
    torch.cuda.synchronize()
    after_load = {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
    before_graphs = _driver_free()
    while engine.capture_next():
        pass
    graphs = before_graphs - _driver_free()
    torch.cuda.reset_peak_memory_stats()
    random = np.random.default_rng(0)
    vocab = engine.loaded.vocab_size
    together = config.max_num_seqs + 8  # tokens each, since those that share a prompt are admitted one a step
    longest = random.integers(5, vocab, config.max_model_len - together - 2).tolist()
    least_free = _generate(engine, [longest], 1)
    for count in (config.max_num_seqs, *random.integers(1, config.max_num_seqs, 3).tolist()):
        prompts = random.integers(5, vocab, (count, int(random.integers(1, 300)))).tolist()
        least_free = min(least_free, _generate(engine, prompts, 4))
    # They share the pages of the first, so that all of them decode together at their full length.
    least_free = min(least_free, _generate(engine, [longest] * config.max_num_seqs, together))
    found = {
        "process": free_before - least_free,
        "context": context,
        "graphs": graphs,  # but for those that were captured as it was loaded
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "loaded_allocated": after_load["allocated"],
        "loaded_reserved": after_load["reserved"],
        "step": torch.cuda.max_memory_allocated() - after_load["allocated"],
        "outside_torch": free_before - least_free - torch.cuda.memory_reserved(),
    }
    sizes = {name: round(size / MIB, 1) for name, size in found.items()}
    print(json.dumps(sizes | {"selection": engine.loaded.selection, "weights": engine.loaded.weight_bytes // MIB}))


def _generate(engine: Engine, prompts: list[list[int]], new: int) -> int:
    """The least that the driver had free meanwhile."""
    sampling = SamplingParams(  # the penalty fills the histories
        max_tokens=new, temperature=0.8, top_p=0.9, repetition_penalty=1.1, seed=1, ignore_eos=True, logprobs=5
    )
    for number, prompt in enumerate(prompts):
        refused = engine.submit(Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
        assert refused is None, refused
    least = _driver_free()
    steps, started = 0, time.monotonic()
    while not engine.idle:
        engine.step()
        steps += 1
        least = min(least, _driver_free())
    seconds = time.monotonic() - started
    print(f"{len(prompts)} prompts of {len(prompts[0])}: {steps} steps, {seconds:.1f} s", file=sys.stderr, flush=True)
    return least


def _driver_free() -> int:
    return torch.cuda.mem_get_info()[0]


if __name__ == "__main__":
    main()
