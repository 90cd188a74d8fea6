"""One launch folder of each kind of end, as the supervisor would have left it, for tests of what tells them apart."""

from __future__ import annotations

import yaml

from appliance.home import Home
from appliance.protocol import (
    Diagnosis,
    EvidenceLine,
    Finding,
    FindingReport,
    Fix,
    Progress,
    Severity,
    State,
)
from tests.console.launch_folders import PHASES, STARTED, WrittenLaunch, failed_launch, ready_launch

TOKENIZER = Finding(
    id="tokenizer-missing",
    severity=Severity.ERROR,
    message="The tokenizer is missing: put tokenizer.json into Qwen3-8B.",
    field="model.path",
    value="Qwen3-8B",
    fix=Fix(
        text="Copy it from the original repository.",
        command="cp ORIGINAL/tokenizer.json models/Qwen3-8B/",
        look="ls -l models/Qwen3-8B",
    ),
)
CONTEXT = Finding(
    id="context-too-long",
    severity=Severity.ERROR,
    message="max-model-len is 131,072 and the model was made for 40,960 tokens.",
    field="max-model-len",
    value=131072,
    fix=Fix(text="Lower it to what the model was made for.", patch={"max-model-len": 40960}),
)
FORCED = Finding(
    id="backend-unusable",
    severity=Severity.ERROR,
    message="backends.moe is flashinfer, and this GPU has no FlashInfer MoE kernel.",
    field="backends.moe",
    value="flashinfer",
    evidence=("fused_moe: flashinfer needs sm_90, this GPU is sm_86",),
    fix=Fix(text="Let the engine choose.", patch={"backends.moe": None}),
)
SHM = Finding(
    id="shm-small",
    severity=Severity.WARNING,
    message="/dev/shm holds 64 MiB; two workers want 1 GiB.",
    fix=Fix(text="Give the container more.", command="docker run --shm-size 1g"),
)
CRASH_LOOP = Finding(
    id="crash-loop",
    severity=Severity.ERROR,
    message="Three launches of qwen3-8b r7 failed within ten minutes, so it was not started a fourth time.",
    fix=Fix(text="Roll back, or change the profile."),
)
STACKS = """\
Process 4107, state R: /usr/bin/python3 -m appliance.engine.core
Process 4107: /usr/bin/python3 -m appliance.engine.core
Python v3.11.2 (/usr/bin/python3.11)

Thread 4107 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    wrapper (torch/distributed/c10d_logger.py:81)
    reduce (appliance/engine/parallel.py:44)
    forward (appliance/models/layers/linear.py:31)
    run (appliance/engine/core.py:212)
    <module> (appliance/engine/core.py:301)
Thread 4119 (idle): "beat"
    wait (threading.py:331)
    run (appliance/engine/beat.py:27)

Process 4133, state S, in do_epoll_wait: /usr/bin/python3 -m appliance.engine.worker
Process 4133: /usr/bin/python3 -m appliance.engine.worker
Python v3.11.2 (/usr/bin/python3.11)

Thread 4133 (idle): "MainThread"
    recv (zmq/sugar/socket.py:800)
    run (appliance/engine/worker.py:61)

Process 4139, state D, in nvidia_ioctl: /usr/bin/nvidia-smi
Process 4140, state T: /usr/bin/python3 -m appliance.engine.worker
Process 4140: no stacks, since py-spy says: Error: Failed to suspend process
"""


def document(launch: WrittenLaunch, **settings: object) -> None:
    """Rewrites the profile that the launch ran."""
    values = {"schema": 1, "name": launch.record.profile, "model": {"path": "Qwen3-8B"}, **settings}
    (launch.folder / "profile.yaml").write_text(yaml.safe_dump(values))


def refused(home: Home, launch_id: str, *findings: Finding, **kwargs: object) -> WrittenLaunch:
    launch = WrittenLaunch(home, launch_id, **kwargs)  # type: ignore[arg-type]
    document(launch, **{"max-model-len": 131072, "backends": {"moe": "flashinfer"}})
    launch.phase("preflight", 0.21, None)
    for finding in findings or (TOKENIZER, CONTEXT, FORCED, SHM):
        launch.tell(FindingReport(finding))
        launch.record.findings.append(finding)
    launch.end_phases("failed")
    launch.change(State.FAILED, launch.record.findings[0].message)
    return launch


def failed_in_a_phase(home: Home, launch_id: str, **kwargs: object) -> WrittenLaunch:
    launch = failed_launch(home, launch_id, **kwargs)
    launch.record.exit_status = "exit status 1"
    launch.save()
    return launch


def failed_vllm(home: Home, launch_id: str, **kwargs: object) -> WrittenLaunch:
    """Phases that the native engine does not have, and a cause that no rule knows."""
    launch = WrittenLaunch(home, launch_id, **kwargs)  # type: ignore[arg-type]
    launch.record.engine = "vllm"
    document(launch, engine="vllm")
    launch.phase("preflight", 0.3)
    launch.change(State.STARTING)
    launch.phase("engine start", 11.2)
    launch.phase("weights", 6.1)
    launch.phase("cache", 0.4)
    launch.phase("compile", 3.0, "failed")
    launch.log(
        "INFO 11-20 10:00:01 [api_server.py:1772] vLLM API server version 0.32.0",
        "(EngineCore_DP0 pid=71) INFO 11-20 10:00:09 [core.py:71] Initializing a V1 LLM engine",
        "(EngineCore_DP0 pid=71) ERROR 11-20 10:00:21 [core.py:492] Traceback (most recent call last):",
        '(EngineCore_DP0 pid=71) ERROR 11-20 10:00:21 [core.py:492]   File "torch/_inductor/graph.py", line 12, in run',
        "(EngineCore_DP0 pid=71) ERROR 11-20 10:00:21 [core.py:492] torch._inductor.exc.InductorError: no lowering",
    )
    launch.diagnose(
        Diagnosis(
            summary="No known cause fits. The first exception: InductorError: no lowering for aten.polar.",
            evidence=(
                EvidenceLine(3, "Traceback (most recent call last):"),
                EvidenceLine(4, '  File "torch/_inductor/graph.py", line 12, in run'),
                EvidenceLine(5, "torch._inductor.exc.InductorError: no lowering"),
            ),
        )
    )
    launch.record.exit_status = "exit status 1"
    launch.change(State.FAILED, "torch._inductor.exc.InductorError: no lowering")
    return launch


def failed_while_serving(home: Home, launch_id: str, **kwargs: object) -> WrittenLaunch:
    launch = ready_launch(home, launch_id, **kwargs)
    launch.time += 5400
    launch.log("Killed")
    launch.record.exit_status = "killed by SIGKILL (nothing inside it can do that: most likely the kernel, or a person)"
    launch.diagnose(
        Diagnosis(
            summary="The kernel ended the engine because the machine ran out of memory.",
            family="memory",
            cause="oom-killer",
            evidence=(EvidenceLine(3, "Killed"),),
            fix=Fix(text="Serve fewer sequences at once.", patch={"max-num-seqs": 64, "max-model-len": 8192}),
        )
    )
    launch.change(State.FAILED, "the core ended: killed by SIGKILL")
    return launch


def hung(home: Home, launch_id: str, **kwargs: object) -> WrittenLaunch:
    launch = WrittenLaunch(home, launch_id, **kwargs)  # type: ignore[arg-type]
    launch.phase(*PHASES[0])
    launch.change(State.STARTING)
    for name, seconds in PHASES[1:4]:
        launch.phase(name, seconds)
    launch.phase("graphs", 121.0, "failed", Progress(done=3, total=8, unit="graphs"))
    launch.log("INFO capturing graphs")
    (launch.folder / "stacks.txt").write_text(STACKS)
    launch.diagnose(
        Diagnosis(
            summary="The engine hung: the phase 'graphs' has not moved for 120 s.",
            family="hang",
            cause="hang-nccl",
            fix=Fix(text="Let NCCL say what it waits for.", patch={"vllm.environment.NCCL_DEBUG": "INFO"}),
        )
    )
    launch.change(State.HUNG, "the phase 'graphs' has not moved for 120 s")
    return launch


def crash_loop(home: Home, launch_id: str, **kwargs: object) -> WrittenLaunch:
    return refused(home, launch_id, CRASH_LOOP, **kwargs)


def cut_off(home: Home, launch_id: str, **kwargs: object) -> WrittenLaunch:
    """As the next front door closes a launch whose own was killed."""
    launch = ready_launch(home, launch_id, **kwargs)
    launch.time += 7200
    launch.record.cut_off = True
    launch.change(State.FAILED)
    return launch


def stopped(home: Home, launch_id: str, **kwargs: object) -> WrittenLaunch:
    launch = ready_launch(home, launch_id, **kwargs)
    launch.time += 600
    launch.change(State.DRAINING)
    launch.change(State.STOPPED)
    return launch


def stopped_while_starting(home: Home, launch_id: str, **kwargs: object) -> WrittenLaunch:
    launch = WrittenLaunch(home, launch_id, **kwargs)  # type: ignore[arg-type]
    launch.phase(*PHASES[0])
    launch.change(State.STARTING)
    launch.phase("weights", 1.2, "skipped", Progress(done=3 << 30, total=15 << 30, unit="bytes"))
    launch.change(State.STOPPED)
    return launch


def starting(home: Home, launch_id: str, **kwargs: object) -> WrittenLaunch:
    launch = WrittenLaunch(home, launch_id, **kwargs)  # type: ignore[arg-type]
    launch.phase(*PHASES[0])
    launch.change(State.STARTING)
    launch.phase("core start", 1.2)
    launch.phase("weights", 1.0, None, Progress(done=3 << 30, total=15 << 30, unit="bytes"))
    return launch


KINDS = {
    "refused": refused,
    "failed": failed_in_a_phase,
    "failed-vllm": failed_vllm,
    "failed-serving": failed_while_serving,
    "hung": hung,
    "crash-loop": crash_loop,
    "cut-off": cut_off,
    "stopped": stopped,
    "stopped-starting": stopped_while_starting,
}


def gallery(home: Home, started: float = STARTED, day: str = "20261120") -> dict[str, str]:
    """A launch of every kind after two good ones; the id of each by its kind. `day` is what the ids begin with."""
    ready_launch(home, f"{day}-010000-0000", started=started - 90_000)
    stopped(home, f"{day}-020000-0000", revision="r6", started=started - 80_000)
    failed_in_a_phase(home, f"{day}-030000-0000", started=started - 70_000)
    ids = {}
    for place, (kind, make) in enumerate(KINDS.items()):
        ids[kind] = f"{day}-1{place}0000-aaaa"
        make(home, ids[kind], started=started - 20_000 + 1000 * place)
    return ids
