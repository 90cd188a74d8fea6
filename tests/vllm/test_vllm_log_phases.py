"""vLLM's log as phases: several versions' words, several workers, and phases that only go forward."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.protocol import Phase, Progress
from appliance.vllm.log_phases import ORDER, PhaseReader

# Lines as vLLM 0.11 to 0.32 print them on a GPU, shortened on the right.
ON_A_GPU = """\
(EngineCore_DP0 pid=9) INFO 06-25 14:20:01 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='m'
(EngineCore_DP0 pid=9) INFO 06-25 14:20:09 [gpu_model_runner.py:2602] Starting to load model /models/m...
(EngineCore_DP0 pid=9) \rLoading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]
(EngineCore_DP0 pid=9) \rLoading safetensors checkpoint shards:  75% Completed | 3/4 [00:03<00:01,  1.00it/s]
(EngineCore_DP0 pid=9) INFO 06-25 14:20:14 [default_loader.py:267] Loading weights took 4.12 seconds
(EngineCore_DP0 pid=9) INFO 06-25 14:20:15 [gpu_model_runner.py:2653] Model loading took 15.2689 GiB and 5.1 seconds
(EngineCore_DP0 pid=9) INFO 06-25 14:20:22 [backends.py:548] Using cache directory: /c/r0/ for vLLM's torch.compile
(EngineCore_DP0 pid=9) INFO 06-25 14:20:22 [backends.py:559] Dynamo bytecode transform time: 6.55 s
(EngineCore_DP0 pid=9) INFO 06-25 14:20:24 [backends.py:197] Cache the graph for dynamic shape for later use
(EngineCore_DP0 pid=9) INFO 06-25 14:20:48 [monitor.py:34] torch.compile takes 31.32 s in total
(EngineCore_DP0 pid=9) INFO 06-25 14:20:49 [gpu_worker.py:298] Available KV cache memory: 54.60 GiB
(EngineCore_DP0 pid=9) INFO 06-25 14:20:49 [kv_cache_utils.py:1087] GPU KV cache size: 397,600 tokens
(EngineCore_DP0 pid=9) \rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):  30%|███       | 20/67 [00:01<00:02]
(EngineCore_DP0 pid=9) \rCapturing CUDA graphs (decode, FULL): 100%|██████████| 35/35 [00:01<00:00, 25.05it/s]
(EngineCore_DP0 pid=9) INFO 06-25 14:20:55 [gpu_model_runner.py:3480] Graph capturing finished in 5 secs, took 0.55 GiB
(EngineCore_DP0 pid=9) INFO 06-25 14:20:55 [core.py:210] init engine (profile, create kv cache, warmup model) took 40 s
""".splitlines()


def read(lines: list[str], **expected: bool) -> list[tuple[tuple[Phase, ...], Phase | None, Progress]]:
    reader = PhaseReader(**({"compiles": True, "captures": True} | expected))
    return [(step.ended, step.phase, step.progress) for line in lines if (step := reader.feed(line)) is not None]


def test_a_start_on_a_gpu_goes_through_every_phase_once_and_in_order() -> None:
    steps = read(ON_A_GPU)
    ended = [phase for step in steps for phase in step[0]]
    assert ended == list(ORDER)
    assert steps[-1][1] is None
    assert (Phase.WEIGHTS, Progress(done=3, total=4, unit="shards")) in [step[1:] for step in steps]
    graphs = [step[2] for step in steps if step[1] is Phase.GRAPHS and step[2].total]
    assert graphs == [Progress(done=20, total=67, unit="graphs"), Progress(done=35, total=35, unit="graphs")]


def test_what_the_engine_does_not_do_is_no_phase() -> None:
    """With enforce-eager there is neither compiling nor capturing."""
    ended = [phase for step in read(ON_A_GPU, compiles=False, captures=False) for phase in step[0]]
    assert ended == [Phase.ENGINE_START, Phase.WEIGHTS, Phase.CACHE]


def test_a_slower_worker_does_not_turn_phases_back() -> None:
    """Of several workers the first to say something moves the launch on."""
    both = [line for pair in zip(ON_A_GPU, ["", "", *ON_A_GPU], strict=False) for line in pair]
    forward = [ORDER.index(step[1]) for step in read(both) if step[1] is not None]
    assert forward == sorted(forward)


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore pid=2) INFO 11-20 16:20:30 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: x",
        "INFO:     Application startup complete.",
        "(APIServer pid=1) INFO: Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs",
        "",
        "\x00\ufffd" * 50,
    ],
)
def test_other_lines_move_nothing(line: str) -> None:
    assert read([line]) == []


def test_the_healthy_starts_that_were_collected_end_their_phases() -> None:
    """Logs of others, of years and versions that nobody wrote the rows for; where the folder is at hand."""
    folder = Path(__file__).parents[3] / "shared" / "startup-logs"
    logs = sorted(folder.glob("9*-ok-vllm-*.log"))
    if not logs:
        pytest.skip("the collected logs are not at hand")
    for log in logs:
        steps = read(log.read_text(errors="replace").splitlines())
        assert steps, log.name
        assert steps[-1][1] is None, log.name


def test_kernels_are_warmed_up_after_the_last_graph() -> None:
    """For 22 s on an H200 (vLLM 0.24): the engine is not asked anything yet."""
    reader = PhaseReader(compiles=True, captures=True)
    for line in ON_A_GPU[:-1]:
        reader.feed(line)
    assert reader.phase is Phase.GRAPHS
    reader.feed(ON_A_GPU[-1])
    assert reader.phase is None
