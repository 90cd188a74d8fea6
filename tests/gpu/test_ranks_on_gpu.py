"""Two GPUs that share a model, by NCCL and with CUDA graphs: they write what one writes, and end as one.

INGOT_GPU_CAST names the cast of their architecture.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from appliance.core_protocol import Fatal, Loaded, Outputs, SamplingParams, Submit
from appliance.engine.allocator import GROWING, VARIABLES
from tests.configured import engine_config
from tests.engine.test_core import CORE, FrontDoor, is_a
from tests.gpu.nccl_rank import NEW_TOKENS
from tests.gpu.test_front_door_on_gpu import Door
from tests.running import fetch
from tests.tiny import BASE, FAMILIES, FP8, aligned, write_checkpoint

CAST = os.environ.get("INGOT_GPU_CAST")
pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
    pytest.mark.skipif(CAST is None, reason="needs a cast, named in INGOT_GPU_CAST"),
]
ROOT = Path(__file__).parents[2]
# What the ranks share.
SHARED = (
    "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "num_attention_heads",
    "num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads",
)  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe in FP8": ("qwen3_moe", {"quantization_config": FP8}),
    "deepseek_v3": ("deepseek_v3", {}),
    "qwen3_next": ("qwen3_next", {}),
}
# Nats. Two ranks add parts up in bfloat16 that one adds up in float32, which changes log probabilities by some
# hundredths, and by 0.08 to 0.12 where activations are rounded to FP8 (two H100); of two tokens, or experts, that are
# nearly as likely either may come first, and other experts change more. A wrong text is off by 4.
MEAN_ERROR, NEARLY_AS_LIKELY, LESS_LIKELY = 0.2, 0.3, 0.1
TOLD_WITHIN_S = 2.0
# Of a GPU that is taken, and of a block of the small model's cache in one of two ranks: two layers, keys and values, 16
# tokens, two heads of 64.
LEFT_BYTES, BLOCK_BYTES = 3 << 30, 2 * 2 * 16 * 2 * 64 * 2

Written = dict[str, list[tuple[int, dict[str, float]]]]


def sizes(family: str) -> dict[str, Any]:
    """Such that each of two ranks has those of `aligned`, of which every kernel has a form."""
    of_one = BASE | FAMILIES[family] | aligned(family)
    return aligned(family) | {name: 2 * of_one[name] for name in SHARED if name in of_one}


def environment() -> dict[str, str]:
    """Of a sealed process."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}


# --------------------------------------------------------------------------------------------------------------------
# What they write
# --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes says of all models, behind what one says of that."""
    place = tmp_path_factory.mktemp("ranks")
    folders = [
        str(write_checkpoint(place / str(number), family, dtype="bfloat16", seed=4, scale=0.1,
                             **sizes(family) | {"max_position_embeddings": 4096} | changes))
        for number, (family, changes) in enumerate(MODELS.values())
    ]  # fmt: skip
    environ = environment() | {VARIABLES[0]: GROWING}  # as a core begins

    def start(ranks: int, rank: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.gpu.nccl_rank", str(ranks), str(rank), str(place / "meet"), *folders]
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        started.append(process)
        return process

    started: list[subprocess.Popen[str]] = []
    try:
        both = [json.loads(each.communicate(timeout=100)[0]) for each in (start(2, 0), start(2, 1))]
        texts = [{way: tokens(model[way]) for way in ("graphs", "again", "mixed")} for model in both[0]["models"]]
        return [json.loads(start(1, 0).communicate(json.dumps(texts), timeout=60)[0]), *both]
    finally:
        for process in started:
            process.kill()


@pytest.fixture(params=enumerate(MODELS), ids=lambda param: param[1])
def of_model(request: pytest.FixtureRequest, said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    number, _ = request.param
    return [each["models"][number] for each in said]


def test_both_ranks_say_the_same_with_graphs_and_without(of_model: list[dict[str, Any]]) -> None:
    _, first, second = of_model
    assert first == second
    assert first["steps_by_graph"] >= 3 * (NEW_TOKENS - 1)
    assert tokens(first["graphs"]) == tokens(first["eager"])
    assert (first["steps_with_prompts"] > 0) == first["holds_prompts"]
    assert all(len(written) == NEW_TOKENS for written in first["sampled"].values())


@pytest.mark.parametrize("way", ["graphs", "again", "mixed"])
def test_one_writes_the_same(of_model: list[dict[str, Any]], way: str) -> None:
    """Token by token, again with prefix hits, and with padded prompts: it finds each as likely, and none likelier but
    for rounding."""
    alone, shared, _ = of_model
    assert shared["hits"] >= 288  # the longest prompt but for its last block
    errors, gaps = [], []
    for name, written in shared[way].items():
        for (token, ours), (theirs, likeliest) in zip(written, alone[way][name], strict=True):
            errors.append(abs(ours[str(token)] - theirs))
            gaps.append(likeliest - theirs)
    error, less = statistics.fmean(errors), sum(gap > NEARLY_AS_LIKELY for gap in gaps) / len(gaps)
    print(f"{len(gaps)} tokens, off by {error:.4f} nats; {less:.1%} are less likely to one", file=sys.stderr)
    assert error < MEAN_ERROR
    assert less <= LESS_LIKELY


def test_no_memory_of_ranks_grows_in_place(said: list[dict[str, Any]]) -> None:
    """Other GPUs could not map it; with one GPU it is what a core asks for."""
    alone, *shared = said
    assert alone["growing_segments"] > 0
    assert [each["growing_segments"] for each in shared] == [0, 0]


def tokens(written: Written) -> dict[str, list[int]]:
    return {name: [token for token, _ in found] for name, found in written.items()}


# --------------------------------------------------------------------------------------------------------------------
# How they end
# --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    home = tmp_path / "home"
    config = sizes("qwen3") | {"max_position_embeddings": 2048}
    write_checkpoint(home / "models" / "tiny", "qwen3", dtype="bfloat16", **config)
    door = Door(home, **{"tensor-parallel-size": 2, "gpu-memory-utilization": 0.2})
    yield door
    door.end()


def follower_of(door: Door) -> psutil.Process:
    """The process of the second rank, of a launch that is ready and answers."""
    door.wait("ready")
    status, answer = fetch(f"{door.url}/v1/completions", {"model": "gpu", "prompt": [7, 8, 9], "max_tokens": 40})
    assert status == 200, answer
    [follower] = [child for child in door.core().children() if "--rank" in child.cmdline()]
    return follower


def test_a_launch_over_two_gpus_answers_and_ends_when_told(door: Door) -> None:
    follower = follower_of(door)
    core = door.core()
    asked = time.monotonic()
    door.end()
    print(f"ended after {time.monotonic() - asked:.2f} s", file=sys.stderr)
    assert not core.is_running()
    assert not follower.is_running()


def test_a_rank_that_is_killed_ends_the_launch_with_that_as_its_cause(door: Door) -> None:
    follower = follower_of(door)
    follower.kill()
    state, seconds = end_of(door)
    assert "SIGKILL" in state["launch"]["reason"]
    assert str(follower.pid) in state["launch"]["reason"]
    assert seconds < TOLD_WITHIN_S


def test_a_rank_that_is_stopped_ends_the_launch_with_that_as_its_cause(door: Door) -> None:
    follower = follower_of(door)
    follower.send_signal(signal.SIGSTOP)
    state, seconds = end_of(door)
    assert "stopped" in state["launch"]["reason"]
    assert str(follower.pid) in state["launch"]["reason"]
    assert seconds < TOLD_WITHIN_S
    assert not follower.is_running()


# Found by Python as it starts, in both processes: one stays in Python before a step, and the other's GPU waits for it.
LATE_RANK = """
import time
from appliance.engine.runner import Runner

compute = Runner.compute

def stuck():
    time.sleep(60)

def late(self, step):
    if self._group.rank == {rank} and step[0].request.num_tokens >= 20:
        stuck()
    return compute(self, step)

Runner.compute = late
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs_ends_the_launch_and_says_where(tmp_path: Path, rank: int) -> None:
    """Steps overlap and are replayed from graphs: the other rank waits for its own GPU."""
    folder = write_checkpoint(tmp_path / "model", "qwen3", dtype="bfloat16", **sizes("qwen3"))
    (tmp_path / "sitecustomize.py").write_text(LATE_RANK.format(rank=rank))
    config = engine_config(folder, ranks=2, cast=CAST, device="cuda:0", dtype="bfloat16", enforce_eager=False)
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    door = FrontDoor()
    process = subprocess.Popen(
        [*CORE, str(door.folder)], env=environment() | {"PYTHONPATH": path}, start_new_session=True
    )
    try:
        door.send(config)
        door.until(is_a(Loaded), 90)
        sampling = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
        door.send(Submit(request_id="long", prompt_token_ids=[7, 8, 9], sampling=sampling))
        door.until(is_a(Outputs), 30)
        began = time.monotonic()
        fatal = door.until(is_a(Fatal), 30)[-1]
        seconds = time.monotonic() - began
        assert isinstance(fatal, Fatal)
        print(f"told after {seconds:.2f} s: {fatal.message}", file=sys.stderr)
        assert fatal.exception == "RankHungError"
        assert f"Rank {rank} " in fatal.message
        assert "stuck (sitecustomize.py:" in fatal.message
        assert seconds < TOLD_WITHIN_S + 1
        assert process.wait(10) == 1
    finally:
        process.kill()
        process.wait()
        door.close()


def end_of(door: Door) -> tuple[dict[str, Any], float]:
    """The state that a launch ends in, and after how long."""
    began = time.monotonic()
    state = door.wait("failed", timeout_s=10)
    seconds = time.monotonic() - began
    print(f"told after {seconds:.2f} s: {state['launch']['reason']}", file=sys.stderr)
    return state, seconds


def test_an_exception_of_a_rank_is_told_with_its_own_words(tmp_path: Path) -> None:
    """The second GPU has less memory than was counted on."""
    folder = write_checkpoint(tmp_path / "model", "qwen3", dtype="bfloat16", **sizes("qwen3"))
    held = torch.empty(torch.cuda.mem_get_info(1)[0] - LEFT_BYTES, dtype=torch.uint8, device="cuda:1")
    config = engine_config(
        folder, ranks=2, cast=CAST, device="cuda:0", dtype="bfloat16", num_blocks=2 * LEFT_BYTES // BLOCK_BYTES
    )
    door = FrontDoor()
    process = subprocess.Popen([*CORE, str(door.folder)], env=environment(), start_new_session=True)
    try:
        door.send(config)
        fatal = door.until(is_a(Fatal), 90)[-1]
        assert isinstance(fatal, Fatal)
        assert fatal.exception == "OutOfMemoryError", fatal.traceback
        assert "GPU 1 " in fatal.message
        assert process.wait(10) == 1
    finally:
        process.kill()
        process.wait()
        door.close()
        del held
