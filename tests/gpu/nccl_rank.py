"""`python -m tests.gpu.nccl_rank RANKS RANK MEETING FOLDER...`: one of RANKS processes with a GPU each, sealed to
INGOT_GPU_CAST. It begins as a core does, and prints what it writes of each model, with CUDA graphs and without. One
alone reads what others wrote, and prints how likely it finds that.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from appliance.core_protocol import EngineConfig, PromptLogprobs
from appliance.engine.core import prepare
from appliance.engine.engine import Engine
from appliance.engine.ranks import join, leave
from appliance.models.collectives import ALONE, Group
from appliance.protocol import StepKind
from tests.configured import engine_config
from tests.parity.conftest import generate, prompts

# Of a padded batch a product may be rounded otherwise. All of these are prefilled in one step, or with states two of
# them in a second one: they decode by four, and at the end by two, and graphs have just so many rows.
ASKED = prompts(4, (3, 5, 61, 300))
NEW_TOKENS, ALTERNATIVES = 48, 5
LIMITS: dict[str, Any] = {
    "dtype": "bfloat16", "device": "cuda:0", "max_num_seqs": 8, "max_model_len": 1024, "num_blocks": 600,
    "max_num_batched_tokens": 512, "num_snapshots": 16,
}  # fmt: skip

Scores = dict[str, list[tuple[float, float]]]  # log probabilities: of the token, and of the likeliest in its place
Written = dict[str, list[tuple[int, dict[int, float]]]]  # tokens, each with log probabilities of the likeliest there


def main(ranks: str, rank: str, meeting: str, *folders: str) -> None:
    cast = os.environ["INGOT_GPU_CAST"]
    configs = [engine_config(Path(folder), ranks=int(ranks), cast=cast, **LIMITS) for folder in folders]
    prepare(configs[0], _log)
    device = configs[0].device
    group: Group = ALONE
    if int(ranks) > 1:
        Path(meeting).mkdir(exist_ok=True)
        joined, group = join(configs[0], int(rank), Path(meeting), _log)
        device = joined.device
    configs = [msgspec.structs.replace(config, device=device) for config in configs]
    found: list[Any]
    if group.count > 1:
        found = [_of_model(config, group) for config in configs]
    else:
        found = [_scores(config, texts) for config, texts in zip(configs, json.load(sys.stdin), strict=True)]
    growing = sum(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
    print(json.dumps({"models": found, "growing_segments": growing}))
    leave(0)


def _of_model(config: EngineConfig, group: Group) -> dict[str, Any]:
    ways: list[dict[str, bool]] = [
        {"enforce_eager": True},
        {"enforce_eager": False, "prefill_graphs": False},
        {"enforce_eager": False},
    ]
    eager, graphs, mixed = (
        Engine(msgspec.structs.replace(config, **way), lambda phase: None, _log, group) for way in ways
    )
    for engine in (graphs, mixed):
        while engine.capture_next():
            pass
    return {
        "eager": _written(eager),
        "graphs": _written(graphs),
        "again": _written(graphs),
        "hits": graphs.scheduler.prompt_tokens_cached,
        "sampled": _written(graphs, temperature=0.9, seed=7, top_p=0.9),
        "steps_by_graph": graphs.steps[StepKind.GRAPH],
        "mixed": _written(mixed),
        "steps_with_prompts": mixed.steps[StepKind.MIXED_GRAPH],
        "holds_prompts": config.prefill_graphs,
    }


def _scores(config: EngineConfig, texts: dict[str, dict[str, list[int]]]) -> dict[str, Scores]:
    """Of the texts that were written in each way, token by token behind its prompt."""
    engine = Engine(msgspec.structs.replace(config, enforce_eager=True), lambda phase: None, _log)
    found = {}
    for way, written in texts.items():
        whole = {name: ASKED[name] + tokens for name, tokens in written.items()}
        outputs = generate(engine, whole, max_tokens=1, prompt_logprobs=1)
        found[way] = {name: _behind(outputs[name][0].prompt_logprobs, len(ASKED[name])) for name in whole}
    return found


def _behind(scores: PromptLogprobs | None, length: int) -> list[tuple[float, float]]:
    """The first score is of the second token."""
    assert scores is not None
    return list(zip(scores.logprobs, scores.top_logprobs, strict=True))[length - 1 :]


def _written(engine: Engine, **sampling: Any) -> Written:
    found = generate(engine, ASKED, max_tokens=NEW_TOKENS, logprobs=ALTERNATIVES, **sampling)
    return {
        name: [(token, dict(output.logprobs[0].top)) for output in outputs for token in output.token_ids]
        for name, outputs in found.items()
    }


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
