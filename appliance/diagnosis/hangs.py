"""Why an engine hangs: from its processes' stacks if there are any, otherwise from its log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from appliance.diagnosis.causes.hang import Waiting
from appliance.diagnosis.deaths_without_exception import LAST_LINES
from appliance.diagnosis.telling import shown
from appliance.protocol import Diagnosis, EvidenceLine, Fix, Outcome


class Place(NamedTuple):
    """Where a process may be: `pattern` is searched in a py-spy dump. The first row that fits any process counts: a
    process that works on something is the cause of those that wait for it."""

    pattern: re.Pattern[str]
    family: str
    cause: str
    doing: str
    fix: Fix


def _place(pattern: str, family: str, cause: str, doing: str, fix: str, **more: object) -> Place:
    return Place(re.compile(pattern), family, cause, doing, Fix(text=fix, **more))  # type: ignore[arg-type]


# The head of a process, as the supervisor and py-spy write it.
HEAD = r"Process (?P<pid>\d{1,9})(?:, state \w(?:, in [^\s:]{1,80})?)?: ?"
_AGAIN = "Start it again. If it hangs again, send this launch's log and stacks.txt to support."
_CACHES = "Allow the first start more time, or run from a cast, which compiles nothing."

PLACES = (
    _place(r"filelock|FileLock|file_baton|FileBaton",
           "jit-toolchain", "build-lock", "is waiting for a lock that another kernel build holds or left behind",
           "End other engines that are compiling. If there are none, delete the lock files in the cache folder and "
           "start again.",
           command="find ~/.cache ~/.triton -name '*.lock' -print"),
    _place(rf"(?m)^{HEAD}\S{{0,120}}(?:nvcc|ptxas|cicc|ninja|cc1plus|cudafe\+\+|/gcc|/g\+\+)"
           r"|flashinfer/jit|deep_gemm/jit|cpp_extension\.py|_run_ninja_build|tilelang/jit|make_cubin"
           r"|triton/(?:compiler|backends|runtime/(?:jit|build))",
           "jit-toolchain", "compiling", "is compiling kernels", _CACHES),
    _place(r"torch/_(?:inductor|dynamo|functorch)|vllm/compilation/",
           "compile", "compiling", "is in torch.compile",
           "Allow more time, or run without torch.compile.", patch={"enforce-eager": True}),
    _place(r"deep_gemm_warmup|flashinfer.{0,40}autotun|autotuner?\.py|kernel_warmup",
           "jit-toolchain", "tuning", "is tuning or warming up kernels", _CACHES),
    _place(r"huggingface_hub|urllib3|requests/|httpx|httpcore|socket\.create_connection|getaddrinfo|modelscope",
           "offline", "hub-asked", "is waiting for the network",
           "Copy the whole model to this machine and set HF_HUB_OFFLINE=1.", command="export HF_HUB_OFFLINE=1"),
    _place(r"distributed_c10d|pynccl|ncclComm|all_reduce|all_gather|broadcast \(torch|barrier|init_process_group"
           r"|TCPStore|rendezvous|ProcessGroup|nvshmem|deep_ep",
           "nccl", "waits-in-collective", "is waiting for another rank in a collective",
           "Look for the rank that is missing or doing something else; try without P2P.",
           patch={"vllm.environment.NCCL_P2P_DISABLE": "1", "vllm.extra-args.disable-custom-all-reduce": True}),
    _place(r"safetensors|weight_utils|weights_iterator|load_weights|torch/serialization|\bread \(|readinto|mmap",
           "host", "slow-storage", "is reading the weights from disk",
           "Check the disk or the network mount; copy the model to a local disk.", command="iostat -x 1 3"),
    _place(r"ray/(?:_private|worker|util|experimental)|placement_group",
           "multi-node", "waits-for-ray", "is waiting for Ray",
           "Check that every host has joined and has its GPUs free.", command="ray status"),
    _place(r"cuda\w{0,40}Synchronize|torch/cuda.{0,60}synchronize|synchronize \(|cuCtxSynchronize|cuda_?graph",
           "hang", "gpu-does-not-finish", "is waiting for a step on the GPU that does not finish",
           "Run without CUDA graphs and let the engine choose its backends; look for Xid lines.",
           patch={"enforce-eager": True, "backends": None}, command="dmesg -T | grep -i -e xid -e nvrm"),
    _place(r"shm_broadcast|acquire_read|acquire_write|MessageQueue|wait_for_ready|recv_multipart",
           "hang", "waits-for-worker", "is waiting for another process, and none shows what it is doing", _AGAIN),
)  # fmt: skip
PROCESS = re.compile(rf"^{HEAD}(?P<command>.*)")
MAX_STACKS = 1 << 20
# How the supervisor reports a stopped process.
STOPPED = "(SIGSTOP)"


def diagnose_hang(hang: str, stacks: str | None, lines: Sequence[EvidenceLine]) -> Diagnosis:
    """`hang` says why it counts as hung; `stacks` is what py-spy wrote of each process."""
    said = hang.rstrip(".")
    if STOPPED in hang:  # which is certain, wherever it was stopped
        return Diagnosis(
            summary=f"The engine hangs: {said}. Something outside the engine stopped it.",
            family="hang",
            cause="stopped",
            evidence=_last(lines),
            fix=Fix(
                text="Find out what stopped it (kill -STOP, Ctrl-Z in its terminal, a debugger, a paused container "
                "or a frozen control group), then start it again.",
            ),
        )
    for place in PLACES if stacks else ():
        found = _where(place, (stacks or "")[:MAX_STACKS])
        if found is not None:
            return Diagnosis(
                summary=f"The engine hangs: {said}. {found} {place.doing}.",
                family=place.family,
                cause=place.cause,
                evidence=_last(lines),
                fix=place.fix,
            )
    return Diagnosis(
        summary=f"The engine hangs: {said}.",
        family="hang",
        cause="no-progress",
        evidence=_last(lines),
        fix=Fix(text=_AGAIN),
    )


def waits(waiting: Waiting, lines: Sequence[EvidenceLine], outcome: Outcome) -> Diagnosis:
    """From the log alone: `lines` are where a process says that it is waiting."""
    waits = f"at the end of the log it is waiting for {waiting.what}."
    return Diagnosis(
        summary=f"The engine is not ready: {waits}" if outcome is Outcome.NOT_READY else f"The engine hangs: {waits}",
        outcome=outcome,
        family=waiting.family,
        cause=waiting.cause,
        evidence=shown(lines),
        fix=Fix(text=waiting.fix, command=waiting.command),
    )


def _where(place: Place, stacks: str) -> str | None:
    """ "Process 12 (a name)" of the first process that is there."""
    found = place.pattern.search(stacks)
    if found is None:
        return None
    heads = [head for line in stacks[: found.end()].splitlines() if (head := PROCESS.match(line))]
    return f"Process {heads[-1]['pid']}" if heads else "One process"


def _last(lines: Sequence[EvidenceLine]) -> tuple[EvidenceLine, ...]:
    return shown([line for line in lines[-LAST_LINES:] if line.text.strip()])
