"""The comparison with vLLM: rounds, figures, goals, and the whole program against a stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bench.comparison import GOALS, Turn, load_figures, start_figures, verdict
from tests.bench.load import Load, Measured
from tests.bench.peer import CPU_LOADS, GPU_LOADS, alternate

ROOT = Path(__file__).parents[2]
LOAD = Load(64, 64, 8, 16)


def turn(tokens_per_s: float) -> Turn:
    return Turn(Measured(tokens_per_s, first_token=0.1, token=0.01, gap_median=0.01, gap_p99=0.012), processor_s=0.01)


def last_line(text: str) -> dict[str, dict[str, Any]]:
    return json.loads(text.splitlines()[-1])


def test_each_side_is_first_in_every_other_round_and_warmed_up_before():
    asked = []

    def side(name: str):
        def run(load: Load, seed: object) -> Turn:
            asked.append((name, seed, load.tokens_out))
            return turn(1.0)

        return run

    rounds = alternate(side("ours"), side("theirs"), [LOAD], 3, time.monotonic() + 60)
    assert asked[:2] == [("ours", "warm-up", 8), ("theirs", "warm-up", 8)]
    assert [(name, seed) for name, seed, _ in asked[2:]] == [
        ("ours", 0), ("theirs", 0), ("theirs", 1), ("ours", 1), ("ours", 2), ("theirs", 2),
    ]  # fmt: skip
    assert len(rounds[LOAD]) == 3


def test_when_time_is_up_one_round_has_been_done():
    rounds = alternate(lambda *_: turn(1.0), lambda *_: turn(1.0), [LOAD], 9, time.monotonic() - 1)
    assert len(rounds[LOAD]) == 1


def test_the_median_of_the_rounds_ratios_is_held_against_the_goal(capsys):
    """The machine is slower in every round, and disturbs one side of one."""
    pairs = [(turn(120.0 / n), turn(100.0 / n)) for n in (1, 2, 3)] + [(turn(1.0), turn(100.0))]
    figures = load_figures({LOAD: pairs}, {LOAD: 0.005})
    name = "64_64_8_tokens_per_s_of_vllm"
    assert verdict(figures, {name: 1.1}) == 0
    found = last_line(capsys.readouterr().out)
    assert found[name] == {"value": 1.2, "goal": 1.1, "ok": True}
    assert found["64_64_8_token_of_floor"]["value"] == 2.0
    assert found["64_64_8_p99_gap_of_median"]["value"] == 1.2
    assert verdict(figures, {name: 1.3}) == 1
    assert last_line(capsys.readouterr().out)[name]["ok"] is False
    assert verdict(figures, {"of a load that was not run": 1.0}) == 0
    assert last_line(capsys.readouterr().out).keys() == found.keys()


@pytest.mark.parametrize("shape", GOALS)
def test_every_goal_is_a_figure_that_a_whole_run_measures(shape):
    loads = CPU_LOADS if shape == "llama-27m" else GPU_LOADS
    rounds = {load: [(turn(1.0), turn(1.0))] for load in loads}
    figures = start_figures([(1.0, 9.0)]) + load_figures(rounds, dict.fromkeys(loads, 0.005))
    assert GOALS[shape].keys() <= {figure.name for figure in figures}


def test_the_whole_program_against_a_stand_in(tmp_path):
    program = tmp_path / "vllm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.bench.stand_in "$@"\n')
    program.chmod(0o755)
    options = ["--layers", "1", "--starts", "1", "--rounds", "1", "--loads", "16/4/2/4"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.peer", *options],
        env=os.environ | {"INGOT_VLLM": str(program), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = last_line(done.stdout)
    assert done.returncode == 1, done.stderr  # no start of Ingot is six times faster than the stand-in's
    assert found["start_of_vllm"]["ok"] is False
    for figure in ("start_ingot_s", "16_4_2_ingot_tokens_per_s", "16_4_2_vllm_first_token_ms"):
        assert found[figure]["value"] > 0, figure
