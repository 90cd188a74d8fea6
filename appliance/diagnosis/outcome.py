"""What a log without a failure proves: that its engine serves, how far it got, or nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from appliance.diagnosis.dressing import plain, undress
from appliance.diagnosis.searchable import Searchable
from appliance.diagnosis.telling import shown
from appliance.launches.states import ENDED
from appliance.protocol import Diagnosis, EvidenceLine, Fix, LaunchRecord, Outcome, State

MAX_TRIED = 50  # lines of one sign: a prompt that a server logs may hold any words
LAST_LINES = 200


class Proof(NamedTuple):
    """Lines that only a serving engine writes: `sign` finds them, `words` must begin what was said."""

    sign: bytes
    words: re.Pattern[str]


def _proof(sign: bytes, words: str) -> Proof:
    return Proof(sign, re.compile(words, re.IGNORECASE))


# A server's first word once it accepts requests.
STARTS = (
    _proof(b"application startup complete", r"application startup complete"),
    _proof(b"uvicorn running on", r"uvicorn running on"),
    _proof(b"fired up and ready to roll", r"the server is fired up"),
    _proof(b"server is listening on", r"(?:\S{1,40} )?(?:main: )?server is listening on"),  # llama.cpp
    _proof(b"started httpservice at", r"started httpservice at"),  # Triton
    _proof(
        b"text_generation_router", r"(?:info )?text_generation_router\S{0,80}: (?:\S{1,80}\.rs:\d{1,6}: )?connected$"
    ),  # TGI
)
ANSWERS = (
    _proof(b'" 200', r'\S{1,80} - "(?:get /(?:health|v1/)|post /)\S{0,300} http/\d(?:\.\d)?" 200'),
    _proof(b"avg generation throughput", r"(?:engine \d{1,6}: )?avg prompt throughput: .{0,80}throughput: (?!0\.0 )\d"),
    _proof(b"decode batch", r"decode batch"),
)
# What a server says as it ends in order.
ENDS = (
    _proof(b"shutting down", r"shutting down$"),
    _proof(b"application shutdown complete", r"application shutdown complete"),
    _proof(b"finished server process", r"finished server process"),
    _proof(b"sigterm", r"(?:received sigterm|sigterm received|\W{0,9}received signal sigterm)"),
)


class Step(NamedTuple):
    """A step of a start. `begins`: with it an engine starts anew."""

    name: str
    signs: tuple[bytes, ...]
    begins: bool = False


STEPS = (
    Step("starting the server", (b"vllm api server version", b"non-default args: ", b"server_args=serverargs(",
                                 b"ingot: starts ", b"ingot core on "), begins=True),
    Step("reading the configuration", (b"resolved architecture: ", b"automatically detected platform",
                                       b"chunked prefill is enabled", b"using max model len")),
    Step("starting the engine", (b"initializing a v1 llm engine", b"initializing an llm engine",
                                 b"initializing an engine with config", b"init torch distributed begin",
                                 b"core engine proc(s) to start")),
    Step("setting up communication", (b"distributed_init_method=", b"vllm is using nccl", b"world_size=",
                                      b"init custom allreduce", b"nccl version")),
    Step("loading the weights", (b"starting to load model", b"checkpoint shards:", b"load weight begin",
                                 b"loading model weights took", b"loading weights took", b"loading safetensors")),
    Step("preparing the loaded model", (b"model loading took", b"load weight end", b" loaded on ")),
    Step("compiling the model", (b"torch.compile", b"dynamo bytecode transform", b"compiling a graph")),
    Step("sizing the KV cache", (b"memory profiling takes", b"available kv cache memory", b"kv cache size:",
                                 b"kv cache is allocated", b"maximum concurrency for", b"memory pool end")),
    Step("warming up kernels", (b"deepgemm warmup", b"autotun", b"kernel_warmup", b"warming up")),
    Step("capturing CUDA graphs", (b"capturing cuda graph", b"capturing cudagraph", b"capture cuda graph",
                                   b"graph capturing finished")),
    Step("starting the API", (b"init engine (profile", b"starting vllm api server", b"supported_tasks",
                              b"supported tasks", b"available routes are", b"started server process",
                              b"waiting for application startup")),
)  # fmt: skip
STAMP = re.compile(r"(?:\d{4}[-/]\d\d[-/]\d\d[T ]|\d\d-\d\d )?\d\d:\d\d:\d\d")


class Reached(NamedTuple):
    """The step at the log's end, with the first and the last line of it."""

    name: str
    first: EvidenceLine
    last: EvidenceLine


def without_failure(log: Searchable) -> Diagnosis:
    """Of a log that shows no failure."""
    if not log.lines:
        return Diagnosis(summary="The log is empty.", outcome=Outcome.UNCLEAR)
    serving = _serving(log)
    if serving is not None:
        return _serves(log.lines[serving])
    ended = _last(log, ENDS)
    reached = _reached(log)
    if ended is not None and (reached is None or log.lines[ended].number > reached.last.number):
        return _not_ready("It was shut down", log.lines[ended])
    if reached is not None:
        return _not_ready(f"Last step: {reached.name}", reached.first, reached.last)
    last = _last_word(log)
    if last is not None:
        return _not_ready("No known step of a start", last, last)
    return Diagnosis(
        summary="This does not show whether an engine works: it is not an engine's log, or too little of one.",
        outcome=Outcome.UNCLEAR,
    )


CUT_OFF = Diagnosis(
    summary="The launch was cut off: the front door was killed, or the machine went down, before an outcome could be "
    "recorded.",
    family="host",
    cause="cut-off",
    fix=Fix(
        text="It was a power failure, a reboot, kill -9, a container's memory limit, or the kernel running out of "
        "memory. The system log of that time says which: read it on the machine that ran the engine, with -b -1 if it "
        "has rebooted since.",
        look="last -x reboot | head -3; journalctl -k | tail -50",
    ),
)


def by_state(record: LaunchRecord, *, runs: bool) -> Diagnosis | None:
    """Of a launch whose log shows no failure, what its supervisor recorded; None where that failed."""
    if record.cut_off or not (runs or record.state in ENDED):
        return CUT_OFF
    match record.state:
        case State.READY | State.DRAINING:
            return Diagnosis(summary="The engine serves.", outcome=Outcome.SERVES)
        case State.STOPPED:
            why = f": {record.reason.rstrip('.')}" if record.reason else ""
            return Diagnosis(summary=f"The launch was stopped{why}.", outcome=Outcome.NOT_READY)
        case State.IDLE | State.PREFLIGHT | State.STARTING:
            phase = f" Phase: {record.phases[-1].phase}." if record.phases else ""
            return Diagnosis(summary=f"The engine is not ready yet.{phase}", outcome=Outcome.NOT_READY)
    return None


def _serving(log: Searchable) -> int | None:
    """The line that proves it, which nothing later took back: neither an end nor another start."""
    started = _last(log, STARTS)
    answered = _last(log, ANSWERS)
    if started is None and answered is None:
        return None
    proof = started if started is not None else answered
    after = [_last(log, ENDS), _last_start(log)]
    if any(position is not None and proof is not None and position > proof for position in after):
        return None
    return answered if answered is not None and (proof is None or answered > proof) else proof


def _last(log: Searchable, proofs: Iterable[Proof]) -> int | None:
    """The position of the last line that is one of them."""
    found = None
    for proof in proofs:
        for position in islice(log.positions_from_end(proof.sign), MAX_TRIED):
            if found is not None and position < found:
                break
            if proof.words.match(undress(plain(log.lines[position].text)).words.strip()):
                found = position
                break
    return found


def _last_start(log: Searchable) -> int | None:
    signs = (sign for step in STEPS if step.begins for sign in step.signs)
    return max((position for sign in signs if (position := log.last(sign)) is not None), default=None)


def _reached(log: Searchable) -> Reached | None:
    """None where no line tells a step."""
    begun = _last_start(log) or 0
    places = sorted(
        (position, at)
        for at, step in enumerate(STEPS)
        for sign in step.signs
        for position in islice(log.positions_from_end(sign), LAST_LINES)
        if position >= begun
    )
    if not places:
        return None
    last, at = places[-1]
    first = last
    for position, other in reversed(places):
        if other != at:
            break
        first = position
    return Reached(STEPS[at].name, log.lines[first], log.lines[last])


def _last_word(log: Searchable) -> EvidenceLine | None:
    """The last line that an engine's logger wrote."""
    for line in reversed(log.lines[-LAST_LINES:]):
        dressed = undress(plain(line.text))
        if dressed.header and dressed.words.strip():
            return line
    return None


def _serves(line: EvidenceLine) -> Diagnosis:
    stamp = _stamp(line)
    return Diagnosis(
        summary=f"The engine serves, as line {line.number:,} shows{f' at {stamp}' if stamp else ''}.",
        outcome=Outcome.SERVES,
        evidence=shown([line]),
    )


def _not_ready(step: str, first: EvidenceLine, last: EvidenceLine | None = None) -> Diagnosis:
    return Diagnosis(
        summary=f"The engine is not ready where the log ends. {step}{_since(first)}.",
        outcome=Outcome.NOT_READY,
        evidence=shown([first, *([last] if last else [])]),
    )


def _since(line: EvidenceLine) -> str:
    stamp = _stamp(line)
    return f" (line {line.number:,}, since {stamp})" if stamp else f" (line {line.number:,})"


def _stamp(line: EvidenceLine) -> str:
    stamp = STAMP.search(line.text[:200])
    return stamp[0] if stamp else ""
