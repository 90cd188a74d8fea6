"""`python -m tests.parity.gloo_rank MEETING RANK FOLDER...`: one of two ranks; prints the tokens of each model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from appliance.engine.engine import Engine
from appliance.engine.ranks import join, leave
from tests.configured import engine_config
from tests.parity.conftest import generate, prompts, tokens


def greedy_tokens(engine: Engine) -> dict[str, list[int]]:
    return {name: tokens(outputs) for name, outputs in generate(engine, prompts(4), max_tokens=32).items()}


def main(meeting: str, rank: str, *folders: str) -> None:
    place = Path(meeting)
    place.mkdir(exist_ok=True)
    configs = [engine_config(Path(folder), ranks=2, num_snapshots=8) for folder in folders]
    _, group = join(configs[0], int(rank), place, lambda line: None)
    engines = (Engine(config, lambda phase: None, lambda line: None, group) for config in configs)
    print(json.dumps([greedy_tokens(engine) for engine in engines]))
    leave(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
