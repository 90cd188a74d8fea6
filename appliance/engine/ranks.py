"""The processes of a model that several ranks share, and what the first says to the others.

The first rank is the core that the front door speaks with. Before each turn of its loop it hands the others what it is
about to do, so that all take the same steps. A rank that ends, fails or hangs ends all: the first to do so is the
cause.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import itertools
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import msgspec

from appliance.core_protocol import EngineConfig, Fatal, Submit, ToCore
from appliance.engine.link import CoreLink
from appliance.engine.rank_watch import RankWatch
from appliance.models.rank_progress import RankProgress, SharedProgress

if TYPE_CHECKING:
    from appliance.models.collectives import Group

# How long a failure is compared with others that come after it: one rank's end fails the calls of all others.
SETTLE_S: Final = 0.3
END_WITHIN_S: Final = 1.0
# A rank that is found stopped (SIGSTOP) so often in turn has failed: all others wait for it.
STOPPED_LOOKS: Final = 4
LOOK_EVERY_S: Final = 0.25
_PR_SET_PDEATHSIG: Final = 1


class Turn(msgspec.Struct, frozen=True):
    """What all ranks do next: hear `messages`, admit the requests whose grammars are `compiled`, and take a step or
    capture a graph, as the engine's state says. `ends`: no more turns follow."""

    messages: list[ToCore] = []
    compiled: list[str] = []
    ends: bool = False


class Followers(Protocol):
    progress: RankProgress
    """Of the first rank."""

    def lead(self, turn: Turn) -> None:
        """Hand the other ranks the next turn."""

    def close(self) -> None:
        """Let them end."""

    def kill(self) -> None:
        """End them wherever they are."""

    def settle(self) -> None:
        """After an exception here: does not return if another rank failed first."""


class NoFollowers:
    progress = RankProgress()

    def lead(self, turn: Turn) -> None: ...

    def close(self) -> None: ...

    def kill(self) -> None: ...

    def settle(self) -> None: ...


@dataclass
class Follower:
    """`said_at` and `ended_at` count what arrived from all of them, so that they tell who was first."""

    rank: int
    process: subprocess.Popen[bytes]
    pipe: Connection
    fatal: Fatal | None = None  # what it said before it ended
    said_at: int = 0
    ended: bool = False
    ended_at: int = 0
    stopped_looks: int = 0


class RankProcesses:
    """Starts ranks 1 and up, and a thread that watches them."""

    def __init__(self, config: EngineConfig, folder: Path, link: CoreLink) -> None:
        self._link = link
        self._followers: list[Follower] = []
        self._arrivals = itertools.count()
        self._closing = threading.Event()
        self._found = threading.Event()
        self._shared = SharedProgress.of(config.ranks)
        self._watched = RankWatch()
        self.progress = self._shared.rank(0)
        for rank in range(1, config.ranks):
            self._followers.append(_start(rank, folder, self._shared.fd))
            self._followers[-1].pipe.send_bytes(msgspec.msgpack.encode(config))
        self._thread = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._thread.start()

    def lead(self, turn: Turn) -> None:
        data = msgspec.msgpack.encode(turn)
        for follower in self._followers:
            with contextlib.suppress(OSError):  # it has ended, which the thread tells
                follower.pipe.send_bytes(data)

    def close(self) -> None:
        self._closing.set()
        self.lead(Turn(ends=True))
        deadline = time.monotonic() + END_WITHIN_S
        for follower in self._followers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                follower.process.wait(max(deadline - time.monotonic(), 0))
        self.kill()

    def settle(self) -> None:
        if self._found.wait(SETTLE_S):
            self._thread.join()  # which ends the process

    def kill(self) -> None:
        self._closing.set()
        end([follower.process for follower in self._followers])

    def _watch(self) -> None:
        cause = None
        while cause is None:
            if self._hear(LOOK_EVERY_S):
                self._found.set()
                while self._hear(SETTLE_S):
                    pass
                cause = cause_of(self._followers)
            elif not self._closing.is_set():
                cause = stopped(self._followers) or self._hung()
            if self._closing.is_set():
                return
        # A rank that failed has printed its own traceback.
        print(cause.traceback if cause.stacks else cause.message, file=sys.stderr, flush=True)
        self._link.last_words(cause)
        self.kill()
        os._exit(1)

    def _hung(self) -> Fatal | None:
        """What to say of ranks for which the others have waited too long, if there are such."""
        words = self._shared.words()
        hang = self._watched.look(words, time.monotonic())
        if hang is None:
            return None
        from appliance.engine.rank_hang import told  # late: the core says hello first

        fatal = told(hang, [os.getpid(), *(follower.process.pid for follower in self._followers)])
        if fatal is None:
            self._watched.be_patient()
        return fatal if self._shared.words() == words else None

    def _hear(self, timeout_s: float) -> bool:
        """Note what the followers say and which of them end; False if nothing comes, or it is expected."""
        heard = hear(self._followers, next(self._arrivals), timeout_s)
        return heard and not self._closing.is_set()


def hear(followers: Sequence[Follower], arrival: int, timeout_s: float) -> bool:
    """Note what they say and which of them end, as the `arrival`-th; False if nothing comes."""
    live = {follower.pipe: follower for follower in followers if not follower.ended}
    ready = wait(list(live), timeout_s) if live else []
    for pipe in ready:
        assert isinstance(pipe, Connection)
        follower = live[pipe]
        try:
            follower.fatal = msgspec.msgpack.decode(pipe.recv_bytes(), type=Fatal)
            follower.said_at = arrival
        except (EOFError, OSError):
            follower.ended, follower.ended_at = True, arrival
    return bool(ready)


def stopped(followers: Sequence[Follower]) -> Fatal | None:
    """What to say of one that has been stopped for the last `STOPPED_LOOKS` calls, if one has. What a debugger stops in
    order to look at it is in another state."""
    for follower in followers:
        try:
            state = Path(f"/proc/{follower.process.pid}/stat").read_bytes().rpartition(b") ")[2][:1]
        except OSError:
            continue  # it has ended, which its connection tells
        follower.stopped_looks = follower.stopped_looks + 1 if state == b"T" else 0
        if follower.stopped_looks >= STOPPED_LOOKS:
            return _died(follower, "was stopped by a signal (SIGSTOP), and the others wait for it")
    return None


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill all of them before waiting for any; one that the kernel cannot end soon is left to it."""
    for process in processes:
        process.kill()
    deadline = time.monotonic() + END_WITHIN_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0))


def _start(rank: int, folder: Path, progress_fd: int) -> Follower:
    ours, theirs = Pipe()
    with theirs:
        command = [sys.executable, "-m", "appliance.engine", "--connect", str(folder), "--parent", str(os.getpid())]
        command += ["--rank", str(rank), "--pipe", str(theirs.fileno()), "--progress", str(progress_fd)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno(), progress_fd])
    return Follower(rank, process, ours)


def cause_of(followers: Sequence[Follower]) -> Fatal:
    """The first that arrived. One that died without a word goes before what arrived with it: what others say then is
    that they miss it."""
    silent = min(
        (each for each in followers if each.ended and each.fatal is None), key=lambda each: each.ended_at, default=None
    )
    told = min((each for each in followers if each.fatal is not None), key=lambda each: each.said_at, default=None)
    if told is not None and told.fatal is not None and (silent is None or told.said_at < silent.ended_at):
        return told.fatal
    assert silent is not None, "nothing arrived"
    try:
        how = _how(silent.process.wait(END_WITHIN_S))
    except subprocess.TimeoutExpired:
        how = "closed its connection"
    return _died(silent, how)


def _died(follower: Follower, how: str) -> Fatal:
    message = f"Rank {follower.rank} of the model (pid {follower.process.pid}) {how}."
    return Fatal(exception="RankDiedError", message=message, traceback="")


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


def seeded(message: ToCore) -> ToCore:
    """With a seed for random numbers, where the client gave none: every rank draws the same."""
    if not isinstance(message, Submit) or message.sampling.seed is not None:
        return message
    sampling = msgspec.structs.replace(message.sampling, seed=secrets.randbits(64))
    return msgspec.structs.replace(message, sampling=sampling)


def join(
    config: EngineConfig,
    rank: int,
    folder: Path,
    log: Callable[[str], None],
    progress: RankProgress | None = None,
) -> tuple[EngineConfig, Group]:
    """Meet the other ranks; the config that this one's engine is made from, and its group, which writes `progress`.
    Imports torch."""
    import torch

    from appliance.engine.peer_memory import open_shared
    from appliance.engine.threads import share_cores
    from appliance.models.collectives import Distributed
    from kernels.binding import bind

    # All ranks are on this host, which need not have a network, nor know its own name.
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    on_gpu = config.device != "cpu"
    share_cores(config.ranks)
    device = torch.device("cuda", rank) if on_gpu else None
    if device is not None:
        torch.cuda.set_device(device)
        config = msgspec.structs.replace(config, device=str(device))
    torch.distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{folder}/ranks",
        rank=rank,
        world_size=config.ranks,
        device_id=device,
    )
    group = Distributed(progress)
    summing = {op: name for op, name in config.backends.items() if op == "all_reduce"}
    if device is not None and summing.get("all_reduce", "torch") != "torch":
        shared = open_shared(group, device, log)
        if shared is not None:
            group.share(shared, bind(summing).all_reduce)
    return config, group


def follow(rank: int, pipe: Connection, folder: Path, progress: RankProgress) -> None:
    """What a process of rank 1 and up does: what it is told, until it is told to end."""
    from appliance.engine.core import Core, prepare

    gc.freeze()  # as the first rank
    gc.enable()
    config = msgspec.msgpack.decode(pipe.recv_bytes(), type=EngineConfig)

    def log(line: str) -> None:
        print(f"(rank_{rank} pid={os.getpid()}) {line}", file=sys.stderr, flush=True)

    prepare(config, log)
    config, group = join(config, rank, folder, log, progress)
    core = Core(config, lambda _: None, log, group)
    progress.end_turn()
    while not (turn := msgspec.msgpack.decode(pipe.recv_bytes(), type=Turn)).ends:
        progress.begin_turn()
        for message in turn.messages:
            core.hear(message)
        core.advance(turn.compiled)
        progress.end_turn()


def run_follower(rank: int, pipe_fd: int, progress_fd: int, folder: Path, parent: int) -> int:
    """Ends with the process that started it, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    pipe = Connection(pipe_fd)
    try:
        follow(rank, pipe, folder, SharedProgress(progress_fd).rank(rank))
    except Exception as error:  # noqa: BLE001 - the one place where a rank's exception is reported
        traceback.print_exc()
        fatal = Fatal(exception=type(error).__name__, message=str(error), traceback=traceback.format_exc())
        with contextlib.suppress(OSError):
            pipe.send_bytes(msgspec.msgpack.encode(fatal))
        leave(1)
    return 0


def leave(status: int) -> NoReturn:
    """End this process, whatever the threads of libraries do; what they hold is not taken apart.

    Taking the interpreter down while they live can abort the process. A thread of gloo's drops the tensor of the last
    sum or broadcast some time after that has returned; it needs the GIL for it, and a Python before 3.14 that is being
    taken down ends a thread that asks for the GIL, here in a destructor of C++. One of NCCL's may wait for other ranks.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(status)
