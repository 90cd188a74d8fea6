"""Exceptions that are not causes: pointers to another, consequences of another process's end, and handled ones."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from appliance.diagnosis.traceback_reader import LoggedException


def _any(*signs: str) -> re.Pattern[str]:
    return re.compile("|".join(signs), re.IGNORECASE)


POINTER = _any(
    r"see (?:the )?(?:root cause|stack ?trace|errors?|logs?)s? (?:above|for)",
    r"check the stack ?trace above",
    r"stack trace above for the root cause",
    r"engine core initialization failed",
    r"(?:worker|engine)\w{0,40} initialization failed due to",
    r"engine process failed to start",
    r"EngineDeadError|EngineGenerateError",
    r"EngineCore encountered an issue",
    r"background (?:loop|task) (?:is not running|has errored)",
    r"rank 0 could not finish the model loading",
    r"Initialization failed\. (?:Please|warmup)",
    r"ActorDiedError|RayActorError|WorkerCrashedError",
    r"worker proc(?:ess)? \S{1,80} died unexpectedly",
    r"Executor failed\.$",
    r"(?:sub|child )process .{0,80}(?:failed|died)\b",
)
# How a process notices that another is gone.
AFTERMATH = _any(
    r"^(?:\w{1,40}\.){0,8}(?:EOFError|BrokenPipeError|ConnectionResetError|ConnectionAbortedError)\b",
    r"^(?:\w{1,40}\.){0,8}(?:BrokenProcessPool|ProcessRaisedException|ChildFailedError)\b",
    r"connection reset by peer|broken pipe|socket closed",
    r"remote process exited or there was a network error",
    r"connection (?:closed by (?:remote )?peer|was likely closed)",
    r"failed to recv, got 0 bytes",
    r"leaked (?:shared_memory|semaphore)",
    r"destroy_process_group",
    r"NCCL communicator was aborted",
)
# An end on request.
ON_REQUEST = re.compile(r"(?:\w{1,40}\.){0,8}(?:KeyboardInterrupt|SystemExit|CancelledError|GeneratorExit)$")
# What Python or a server logs before the traceback of a handled exception.
SURVIVED = _any(
    r"exception ignored (?:in|while)",
    r"exception in (?:thread|callback|ASGI application|WSGI application)",
    r"exception (?:was never retrieved|on request)",
    r"logging error",
    r"error in (?:sitecustomize|usercustomize)\b",  # Python starts without it
    r"error (?:in|while) (?:handling|processing) (?:the )?request",
    r"failed to import|import(?:ing)? .{0,80}failed",
    r"falling back|fallback|ignor(?:ed|ing)",
    r"usage stat",
    r"(?:error|failed|unable|problem)(?: \w{1,40})? (?:saving|to save|writing|to write|sending|to send"
    r"|reporting|to report)",
    r"(?:error|failed) (?:fetching|to fetch|querying|to query|retrieving|to retrieve)",
)
FATAL_LEAD = _any(
    r"(?:failed to (?:start|initiali[sz]e)\b|initiali[sz]ation failed)",
    r"(?:EngineCore|Scheduler|DataParallelController|\w{0,40}Tokenizer\w{0,40}|TpModelWorker\w{0,40}"
    r"|ModelRpc\w{0,40}) (?:hit|encountered"
    r"|caught)"
    r" an? (?:fatal )?(?:exception|error)",
    r"encountered a fatal error",
    r"^Process [\w-]{1,80}(?:[:_]\w{1,80}){0,8}:$",  # multiprocessing: nothing caught it
    r"init state",
    r"_log_task_completion|engine background task failed",
    r"\b(?:engine|scheduler|event|main)[ _]loop (?:failed|crashed|died|stopped with)\b",
)
# The first frame of a process that nothing caught; for a helper process it does not lead into an engine.
ENTRY = _any(
    r'/bin/(?:vllm|sglang|ingot|ray)", line \d{1,9}, in <module>',
    r'<frozen runpy>|/runpy\.py"|multiprocessing/(?:process|spawn)\.py"',
    r'"<string>", line 1, in <module>',
    r'(?:api_server|launch_server|__main__|main|serve)\.py", line \d{1,9}, in <module>',
    r'appliance/engine/__main__\.py"',
)
ENGINE_PATH = re.compile(r"[/\"](?:vllm|sglang|sgl-workspace|appliance)[/\"-]")
FRAMES_TO_ENGINE = 6
# The loops of the processes that hold the model.
CORE_PATH = re.compile(
    r"/vllm/v1/(?:engine/core|executor/multiproc_executor|worker/\w{1,40})\.py|/managers/scheduler\.py"
)
# What the C library says of a call that failed.
ERRNO = (
    "Permission denied|Read-only file system|No such file or directory|No space left on device|Not a directory"
    "|Is a directory|Operation not permitted|Function not implemented|Device or resource busy|Input/output error"
)
# How programs without Python tracebacks end, or report that they could not start something.
GIVING_UP = _any(
    r"^(?:vllm|api_server\.py|sglang|launch_server\.py)(?: [\w-]{1,40}){0,2}: error: ",
    r"^panic: |thread '[^']{0,80}' panicked",
    r"^\W{0,4}fatal error\b|\bfatal: ",
    r"failed to (?:start|load|launch|run|create|initiali[sz]e) (?:the )?['\"]?(?:engine|executor|model|server|worker"
    r"|container|instance|shard|process|service|pod|[\w-]{1,80}['\"] version)",
    r"(?:engine|executor|model|server|worker|container|shard|process|service)\w{0,40} (?:\S{1,40} )?"
    r"(?:failed to|could not|cannot) (?:be )?(?:start|load|launch|run|initiali[sz]e)",
    r"got fatal signal from worker",
    r"^error (?:loading|starting|creating|initiali[sz]ing) (?:the )?\w{1,40} (?:app|server|engine|model|worker)\b",
    r"background task failed|hit an exception|encountered a fatal error",
    r"^(?:[\w-]{1,40}: )?error: (?:creating|failed|cannot|could not|unable|invalid|unknown|unexpected"
    r"|unrecogni[sz]ed|missing)",
    r"^error while handling argument\b|\berror loading model\b",
    r"^dependency failed to start\b|\binitiali[sz]ation failed, exiting\b",
    r"\b(?:process|runner|server|shard)\w{0,20} (?:\S{1,20} )?(?:has |was )?(?:terminated|crashed|signaled)\b",
    r"failed to (?:load|initiali[sz]e) (?:the )?\w{1,40} (?:model|executor|context|backend)\b",
    r"(?:failed to|could not|couldn't|cannot|unable to) (?:start|create|launch|initiali[sz]e) (?:an? |the )?"
    r"(?:\w{1,40} ){0,2}(?:backend|engine|server|executor|model|worker|runner|router|container)\b",
    rf"^(?:[\w./-]{{1,200}}: ){{1,4}}.{{0,400}}?\b(?:{ERRNO})(?::|\.?$)",
    r"^Warning {1,40}(?!FailedScheduling)(?:Failed\w{1,40}|UnexpectedAdmissionError|Evicted) ",  # kubectl describe
)
# A pointer that quotes what it points at.
QUOTING = re.compile(
    r"(?:worker|process|engine|executor)\w{0,20} failed with error ['\"]"
    r"(?:(?P<type>[A-Z]\w{1,60}(?:Error|Exception)): )?(?P<message>.{1,2000}?)['\"], please check",
    re.IGNORECASE | re.DOTALL,
)
# The engine's arguments, as it or a shell prints them.
DUMPS = (
    "non-default args", "namespace(", "serverargs(", "server_args=", "engine_args=", "engine_args:", " with config: ",
    "dumping input", "dumping scheduler",
)  # fmt: skip
ECHO = re.compile(
    r"(?:[$#+] )?(?:docker|podman|nerdctl|kubectl|sudo|python3?|vllm|sglang) (?:run|serve|-m|launch|exec)\b(?!: error)"
    r"|args: |\[?\"?(?:command|args|entrypoint)\"?:"
)


def is_dump(words: str) -> bool:
    """Printed arguments and settings, which may contain an exception's words."""
    lowered = words.lower()
    return ECHO.match(words) is not None or any(map(lowered.__contains__, DUMPS))


@functools.lru_cache(maxsize=1024)  # ranks and restarts say the same again and again
def _holds(text: str, pattern: re.Pattern[str]) -> bool:
    return pattern.search(text) is not None


def is_pointer(exception: LoggedException) -> bool:
    return _holds(exception.headline, POINTER) or is_end_on_request(exception)


def quoted(exception: LoggedException) -> LoggedException | None:
    """The error that a pointer quotes, where the log holds no more of it; None of any other exception."""
    found = QUOTING.search(exception.message)
    if found is None:
        return None
    kind = found["type"] or exception.type
    text = f"{kind}: {found['message']}"
    return replace(exception, type=kind, message=found["message"], text=text, frames=(), body=())


def is_aftermath(exception: LoggedException) -> bool:
    return _holds(exception.text, AFTERMATH)


def is_giving_up(words: str) -> bool:
    return GIVING_UP.search(words) is not None


def is_lead(words: str) -> bool:
    """Whether it only announces an exception, rather than being its message."""
    return any(_holds(words, pattern) for pattern in (FATAL_LEAD, SURVIVED, POINTER)) or words.endswith((":", "%s"))


def is_end_on_request(exception: LoggedException) -> bool:
    return ON_REQUEST.match(exception.type) is not None


def is_survived(exception: LoggedException) -> bool:
    """Whether it was caught and execution went on."""
    if _holds(exception.lead, FATAL_LEAD):
        return False
    return exception.level in ("DEBUG", "INFO", "NOTICE", "WARNING", "WARN") or _holds(exception.lead, SURVIVED)


def is_of_a_core(exception: LoggedException) -> bool:
    """Whether it was raised in a process that computes and serves no requests: none survives that."""
    return any(CORE_PATH.search(place.text) for place, _ in exception.frames)


def is_fatal(exception: LoggedException) -> bool:
    """Whether its process ends: the engine says so, or nothing caught it."""
    if is_end_on_request(exception) or is_survived(exception):
        return False
    if _holds(exception.lead, FATAL_LEAD):
        return True
    places = [place.text for place, _ in exception.frames[:FRAMES_TO_ENGINE]]
    return (
        not exception.level
        and bool(places)
        and ENTRY.search(places[0]) is not None
        and any(ENGINE_PATH.search(place) for place in places)
    )
