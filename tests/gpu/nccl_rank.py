"""`python -m tests.gpu.nccl_rank RANKS RANK MEETING FOLDER...`: one of RANKS processes with a GPU each, sealed to
INGOT_GPU_CAST. It begins as a core does, and prints what it writes of each model, with CUDA graphs and without.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from appliance.engine.core import prepare
from appliance.engine.engine import Engine
from appliance.engine.ranks import join
from appliance.models.collectives import ALONE, Group
from appliance.protocol import EngineConfig, StepKind
from tests.configured import engine_config
from tests.parity.conftest import generate, prompts

# As many as one of the graphs has rows: of a padded batch a product may be rounded otherwise.
ASKED = prompts(4, (3, 20, 61, 300))
NEW_TOKENS, ALTERNATIVES = 48, 5
LIMITS: dict[str, Any] = {
    "dtype": "bfloat16", "device": "cuda:0", "max_num_seqs": 8, "max_model_len": 1024, "num_blocks": 600,
    "max_num_batched_tokens": 256, "num_snapshots": 16,
}  # fmt: skip

Written = dict[str, list[tuple[int, dict[int, float]]]]  # tokens, each with log probabilities of the likeliest there


def main(ranks: str, rank: str, meeting: str, *folders: str) -> None:
    cast = os.environ["INGOT_GPU_CAST"]
    configs = [engine_config(Path(folder), ranks=int(ranks), cast=cast, **LIMITS) for folder in folders]
    prepare(configs[0], _log)
    device = configs[0].device
    group: Group = ALONE
    if int(ranks) > 1:
        Path(meeting).mkdir(exist_ok=True)
        joined, group = join(configs[0], int(rank), Path(meeting))
        device = joined.device
    found = [_of_model(msgspec.structs.replace(config, device=device), group) for config in configs]
    growing = sum(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
    print(json.dumps({"models": found, "growing_segments": growing}), flush=True)
    os._exit(0)  # as ranks end: what they hold together is not taken apart


def _of_model(config: EngineConfig, group: Group) -> dict[str, Any]:
    eager, graphs = (
        Engine(msgspec.structs.replace(config, enforce_eager=without), lambda phase: None, _log, group)
        for without in (True, False)
    )
    captured = 1  # before it was ready
    while graphs.capture_next():
        captured += 1
    return {
        "eager": _written(eager),
        "graphs": _written(graphs),
        "again": _written(graphs),  # with prefix hits
        "sampled": _written(graphs, temperature=0.9, seed=7, top_p=0.9),
        "captured": captured,
        "steps_by_graph": graphs.steps[StepKind.GRAPH],
    }


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
