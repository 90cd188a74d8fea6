"""What each process of a hung engine waits for or works on: by its innermost frame that belongs to a domain, by what it
waits for in the kernel, or by its command."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from appliance.launches.process_names import TITLE, is_helper
from appliance.launches.stacks import Process, Stacks, Thread, parse
from appliance.protocol import Fix

MAX_STACKS = 1 << 20
MAX_GROUPS = 4
MAX_NAMED = 8
MAX_AT = 400
MAIN_THREAD = "MainThread"
WAITS = "Waits for "
AWAITED = f"{WAITS}the lock on "
UNOPENED_PIPE = f"{WAITS}the other end of the pipe "
CONNECTION = f"{WAITS}a connection to "
HELD = "Lock on "


class Place(NamedTuple):
    """Where a process may be: `pattern` is searched in a frame, as "function (file:line)", in what the process waits
    for in the kernel, and in its command if that is a `program`. The rows are in order of what they explain: a process
    that works on something is the cause of those that wait for it. `weak`: of a stack, an outer frame says more."""

    pattern: re.Pattern[str]
    family: str
    cause: str
    doing: str
    fix: Fix
    weak: bool = False
    program: re.Pattern[str] | None = None


class Stuck(NamedTuple):
    """`at` is the frame, or what it waits for; empty where the command says it."""

    process: Process
    place: Place
    at: str

    @property
    def rank(self) -> int:
        return PLACES.index(self.place)

    @property
    def name(self) -> str:
        return _name(self.process)


def _name(process: Process) -> str:
    title = TITLE.match(process.what)
    return f"{title['name']} (process {process.pid})" if title else f"Process {process.pid}"


def _place(
    pattern: str, family: str, cause: str, doing: str, fix: Fix, *, weak: bool = False, program: str = ""
) -> Place:
    return Place(re.compile(pattern), family, cause, doing, fix, weak, re.compile(program) if program else None)


AGAIN = "Start it again. If it hangs again, send this launch's log and stacks.txt to support."
_MORE_TIME = Fix(text="Allow the first start more time.")

PLACES = (
    _place(r"\bfilelock/|/_?filelock\.py|FileLock|file_baton|FileBaton|^Waits for the lock on ",
           "jit-toolchain", "build-lock", "is waiting for a lock that another process holds or left behind",
           Fix(text="End other engines that are compiling. If there are none, delete the lock files in the cache "
               "folder and start again.", look="find ~/.cache ~/.triton -name '*.lock' -print")),
    _place(r"flashinfer/jit|deep_gemm/jit|cpp_extension\.py|_run_ninja_build|tilelang/jit|make_cubin"
           r"|triton/(?:compiler|backends|runtime/(?:jit|build))",
           "jit-toolchain", "compiling", "is compiling kernels", _MORE_TIME,
           program=r"\S{0,200}(?:nvcc|ptxas|cicc|ninja|cc1plus|cudafe\+\+|/gcc|/g\+\+)"),
    _place(r"torch/_(?:inductor|dynamo|functorch)|vllm/compilation/",
           "compile", "compiling", "is in torch.compile",
           Fix(text="Allow more time, or run without torch.compile.", patch={"enforce-eager": True})),
    _place(r"deep_gemm_warmup|flashinfer.{0,40}autotun|autotuner?\.py|kernel_warmup",
           "jit-toolchain", "tuning", "is tuning or warming up kernels", _MORE_TIME),
    _place(rf"^{UNOPENED_PIPE}",
           "hang", "waits-for-opener", "is waiting for another process",
           Fix(text="Start what should open the other end of that pipe, or correct the path: it is no ordinary file.")),
    _place(r"huggingface_hub|urllib3|requests/|httpx|httpcore|socket\.create_connection|getaddrinfo|modelscope",
           "offline", "hub-asked", "is waiting for the network",
           Fix(text="Copy the whole model folder to this machine and use its path.")),
    _place(rf"^{CONNECTION}",
           "multi-node", "waits-for-connection", "is waiting for a connection that nobody answers",
           Fix(text="Check that address: whether its host can be reached from here, and the process there is alive.")),
    _place(r"distributed_c10d|pynccl|ncclComm|all_reduce|all_gather|broadcast \(torch|barrier|init_process_group"
           r"|TCPStore|rendezvous|ProcessGroup|nvshmem|deep_ep",
           "nccl", "waits-in-collective", "is waiting for another rank in a collective",
           Fix(text="Look for the rank that is missing or doing something else; try without P2P.",
               patch={"vllm.environment.NCCL_P2P_DISABLE": "1", "vllm.extra-args.disable-custom-all-reduce": True})),
    _place(r"safetensors|weight_utils|weights_iterator|load_weights|torch/serialization|\bread \(|readinto|mmap",
           "host", "slow-storage", "is reading the weights from disk",
           Fix(text="Check the disk or the network mount; copy the model to a local disk.", look="iostat -x 1 3")),
    _place(r"ray/(?:_private|worker|util|experimental)|placement_group",
           "multi-node", "waits-for-ray", "is waiting for Ray",
           Fix(text="Check that every host has joined and has its GPUs free.", look="ray status")),
    _place(r"cuda\w{0,40}Synchronize|torch/cuda.{0,60}synchronize|synchronize \(|cuCtxSynchronize|cuda_?graph"
           r"|^Waits for the GPU ",
           "hang", "gpu-does-not-finish", "is waiting for a step on the GPU that does not finish",
           Fix(text="Run without CUDA graphs and let the engine choose its backends; look for Xid lines.",
               patch={"enforce-eager": True, "backends": None}, look="dmesg -T | grep -i -e xid -e nvrm"),
           weak=True),
    _place(r"^Waits for the file ",
           "host", "waits-for-file", "is waiting for a file",
           Fix(text="Check the disk or the network mount that the file is on."), weak=True),
    _place(r"shm_broadcast|acquire_read|acquire_write|MessageQueue|wait_for_ready|recv_multipart"
           r"|^Waits for data from a pipe",
           "hang", "waits-for-worker", "is waiting for another process", Fix(text=AGAIN), weak=True),
    _place(r"^Waits for (?!process )|\b(?:recv|recv_into|connect|accept) \(.{0,80}socket",
           "hang", "waits-for-socket", "is waiting for a socket",
           Fix(text="Find out who should answer there. Start it again; if it hangs again, send this launch's log and "
               "stacks.txt to support."), weak=True),
    _place(r"^Waits for process ", "hang", "waits-for-child", "is waiting for another process", Fix(text=AGAIN),
           weak=True),
)  # fmt: skip
BUILD_LOCK = PLACES[0]
UNOPENED = next(place for place in PLACES if place.cause == "waits-for-opener")
UNANSWERED = next(place for place in PLACES if place.cause == "waits-for-connection")
# The frame of a process that itself waits for a connection: to a store where ranks meet, or as its innermost one.
MEETS = re.compile(r"rendezvous|TCPStore|c10d_store")
CONNECTS = re.compile(r"(?:create_connection|(?:_|sock_)?connect(?:_ex|_tcp)?) \(")
HOLDER = re.compile(r"[1-9]\d{0,8}")


def stuck_processes(stacks: str) -> list[Stuck]:
    """Those of which it shows, the ones that explain the hang first."""
    parsed = parse(stacks[:MAX_STACKS])
    found = (_with_holders(stuck, parsed.rest) for stuck in where_they_are(parsed).values())
    return sorted(found, key=lambda stuck: stuck.rank)


def unplaced(stacks: str) -> str:
    """Of processes of which nothing else shows: how the kernel has each, and the innermost frame of its main thread."""
    shown = [one for one in parse(stacks[:MAX_STACKS]).processes if not is_helper(one.what.split()) and one.does]
    return " ".join(filter(None, map(_stands, shown[:MAX_GROUPS])))


def _stands(process: Process) -> str:
    frame = next((frames[0] for frames in _threads(process) if frames and process.threads), "")
    return f"{_name(process)} {process.does}{f': {frame[:MAX_AT]}' if frame else ''}."


def _with_holders(stuck: Stuck, held: list[str]) -> Stuck:
    """Who tries again and again for a lock is told with those that others hold."""
    if stuck.place is not BUILD_LOCK or stuck.at.startswith(AWAITED):
        return stuck
    found = (re.fullmatch(rf"{HELD}(?P<path>.+), held by process (?P<pid>\d+)", line) for line in held)
    paths: dict[str, list[str]] = {}
    for lock in found:
        if lock is not None and lock["pid"] != stuck.process.pid:
            paths.setdefault(lock["pid"], []).append(lock["path"])
    if not paths:
        return stuck
    told = (f"process {pid} holds {first}{f' and {len(more)} more' if more else ''}"
            for pid, (first, *more) in paths.items())  # fmt: skip
    return stuck._replace(at=f"{'; '.join(told)}; {stuck.at}")


def fix_of(stuck: Stuck, stacks: str) -> Fix:
    """Of a lock that is waited for in the kernel, the end of its holder: not of one whose `stacks` were dumped, which
    ends with its engine, nor of one that is not seen to have the file open, which is only looked at. Of locks that
    somebody holds while another tries for one, none need be the one that it tries for."""
    path, _, holder = stuck.at.rpartition(", held by process ")
    if stuck.place is not BUILD_LOCK or not path.startswith(AWAITED) or HOLDER.fullmatch(holder) is None:
        return stuck.place.fix
    pid = int(holder)
    if pid == 1 or holder in {process.pid for process in parse(stacks[:MAX_STACKS]).processes}:
        return stuck.place.fix
    text = f"Process {pid} holds the lock. If it is not compiling, end it and start again."
    if _has_open(pid, path.removeprefix(AWAITED)):
        return Fix(text=text, command=f"kill {pid}")
    return Fix(text=text, look=f"ps -fp {pid}")


def _has_open(pid: int, path: str) -> bool:
    """Whether this machine shows that it has: another process may have its number by now."""
    try:
        return any(os.readlink(handle) == path for handle in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def where_they_are(stacks: Stacks) -> dict[str, Stuck]:
    """By process id, those of which it shows."""
    found = (_where(process) for process in stacks.processes if not is_helper(process.what.split()))
    return {stuck.process.pid: stuck for stuck in found if stuck is not None}


def in_words(stuck: list[Stuck]) -> str:
    """A sentence for each place, with the first process there and where exactly it is."""
    groups = [list(group) for _, group in groupby(stuck, key=lambda one: one.rank)]
    return " ".join(map(_sentence, groups[:MAX_GROUPS]))


def _sentence(group: list[Stuck]) -> str:
    first, *others = group
    at = f": {first.at[:MAX_AT].removeprefix(WAITS)}" if first.at else ""
    numbers = [other.process.pid for other in others[:MAX_NAMED]]
    more = f"; so {'is' if len(numbers) == 1 else 'are'} {', '.join(numbers)}" if numbers else ""
    return f"{first.name} {first.place.doing}{more}{at}."


def _where(process: Process) -> Stuck | None:
    """By its main thread, unless another one of its threads says more. What the kernel knows for certain counts before
    any frame: a lock, or a pipe that nobody opens. A connection that nobody answers explains only what itself waits for
    it: any thread may have one open, such as telemetry's."""
    for place, beginning in ((BUILD_LOCK, AWAITED), (UNOPENED, UNOPENED_PIPE)):
        note = _note(process, beginning)
        if note is not None:
            return Stuck(process, place, note)
    for place in PLACES:
        if place.program is not None and place.program.match(process.what):
            return Stuck(process, place, "")
    found = [stuck for thread in _threads(process) if (stuck := _innermost(process, thread)) is not None]
    strong = next((stuck for stuck in found if not stuck.place.weak), None)
    unanswered = _note(process, CONNECTION)
    if unanswered is not None and _connects(process, strong):
        return Stuck(process, UNANSWERED, unanswered)
    best = strong or _by_notes(process, unless=unanswered) or next(iter(found), None)
    if unanswered is None:
        return best
    if best is None:
        return Stuck(process, UNANSWERED, unanswered)
    return best._replace(at=f"{best.at}; waits for {unanswered.removeprefix(WAITS)}")


def _note(process: Process, beginning: str) -> str | None:
    return next((note for note in process.notes if note.startswith(beginning)), None)


def _connects(process: Process, strong: Stuck | None) -> bool:
    """Whether what it stands in is itself a wait for a connection, and nothing explains it better."""
    if strong is not None:
        return strong.rank > PLACES.index(UNANSWERED) and MEETS.search(strong.at) is not None
    main = next(iter(_threads(process)), []) if process.threads else []
    return bool(main) and CONNECTS.match(main[0]) is not None


def _threads(process: Process) -> list[list[str]]:
    """Their frames, innermost first; the main thread comes first, which may have no name. Frames without a thread are
    kept as notes."""
    threads = sorted(process.threads, key=lambda thread: thread.name not in (MAIN_THREAD, process.pid))
    return [list(_frames(thread)) for thread in threads] or [process.notes]


def _frames(thread: Thread) -> Iterator[str]:
    return (f"{frame.function} ({frame.place})" for frame in thread.frames)


def _innermost(process: Process, frames: list[str]) -> Stuck | None:
    weak: Stuck | None = None
    for frame in frames:
        place = next((place for place in PLACES if place.pattern.search(frame)), None)
        if place is not None and not place.weak:
            return Stuck(process, place, frame)
        if place is not None:
            weak = weak or Stuck(process, place, frame)
    return weak


def _by_notes(process: Process, unless: str | None = None) -> Stuck | None:
    waits = (note for note in process.notes if note.startswith(WAITS) and note != unless)
    return next((Stuck(process, place, note) for note in waits for place in PLACES if place.pattern.search(note)), None)
