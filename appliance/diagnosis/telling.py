"""Diagnoses in words: the summary, the evidence, the fix."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import msgspec

from appliance.diagnosis.axes import (
    CHECK_FAILED,
    ERROR_REPORTED,
    OF_A_WRONG_KIND,
    WHOSES,
    WRONG_KIND,
    What,
    axes_of,
    what_of,
    what_said,
    whats_said,
    whose_of,
)
from appliance.diagnosis.blamed_setting import (
    GENERAL_CAUSES,
    IMPORT_CAUSES,
    MAX_TEXT,
    MODEL_FAMILIES,
    SETTINGS_FAMILY,
    UNRECOGNISED,
    corrected,
    with_condition,
    with_forced,
    with_import,
    with_origin,
    with_override,
    with_settings,
    with_spoken,
    with_variable,
)
from appliance.diagnosis.catalogue import Match
from appliance.diagnosis.cause import Cause
from appliance.diagnosis.decisive import NAMES, with_names
from appliance.diagnosis.error_lines import ErrorLine
from appliance.diagnosis.mending import with_mending
from appliance.diagnosis.named_settings import USAGE, is_subject
from appliance.diagnosis.own_bugs import EXPORT, is_own_bug, is_refusal
from appliance.diagnosis.provenance import LaunchSettings
from appliance.diagnosis.raise_sites.areas import NOUNS
from appliance.diagnosis.raise_sites.lookup import FoundSite
from appliance.diagnosis.stripping import with_advice, without_dumps
from appliance.diagnosis.traceback_reader import LoggedException
from appliance.diagnosis.validation import with_problem
from appliance.diagnosis.vocabulary import family_of
from appliance.engines import engine_named
from appliance.protocol import Diagnosis, EvidenceLine, Fix

NOT_RECOGNISED = "Ingot does not recognise this error. Send this launch's log to support."
MAX_EVIDENCE = 6
# What is said only of some of the places in an engine's source.
OF_SETTINGS = ("refused", "too-large")
OF_VALUES = ("refused", "too-large", "unsupported")
OF_MODEL = "Correct the value in the model's config.json, or use a model that this engine supports."
# Where a fix would speak of a setting, and what happened is no setting's: what to try, by family.
WAYS = {
    "abi": "Use the engine's container image, or releases of its parts that fit each other.",
    "arch": "Use an image that is built for this GPU.",
    "backend": "Let the engine choose its backends, or use an image or a release that includes what is missing.",
    "compile": "Run without compilation (enforce-eager), or use another release.",
    "driver": "Check the driver and the GPU with nvidia-smi, and that the driver is new enough for the image.",
    "host": "Check the host: its kernel, its limits, and the programs that the message names.",
    "jit-toolchain": "Use an image that includes the compiler and the compiled kernels.",
    "kernel-crash": "Let the engine choose its backends, or use another release.",
    "memory": "Free memory, or ask for less: a shorter context, fewer sequences, or a smaller model.",
    "model-config": "Compare the model's files (config.json, the tokenizer's, the chat template) with those of their "
    "source, or use a model that this engine supports.",
    "multi-node": "Check that every host runs, and that each reaches the others' addresses and ports.",
    "offline": "Check the network, the address and the token; or fetch the model first, and start from its folder.",
    "permission": "Give the user that runs the engine access to what the message names.",
    "port": "Free that address, or choose another.",
    "nccl": "Check that the processes reach each other's GPUs and network devices; NCCL_DEBUG=INFO says more.",
    "quant-dtype": "Choose a checkpoint in a number format that this GPU and this release support.",
    "weights": "Check that config.json and the weights belong to the same model and are complete: copy its files "
    "again, or use a release of the engine that knows this checkpoint.",
}
OF_AN_IMAGE = (("missing", "abi"), ("missing", "backend"), ("missing", "jit-toolchain"))
OF_NO_SETTING = ("arch", "driver", "weights")
NETWORK_FAMILIES = ("multi-node", "nccl", "offline", "port")
NETWORK_OWNERS = ("connector", "executor", "kv-offload", "server")
CHECKS = ("AssertionError", "TypeError", "ValueError", "VLLMValidationError")
# What a launch can do without.
_WITHOUT = {whose.name: whose.without for whose in WHOSES if whose.without}
OWN_FRAMES = 3
MATCHING_LINES = 2
# An engine's own code, rather than what it calls.
OWN = re.compile(
    r"[/\"](?:vllm|sglang|sgl-workspace|appliance|kernels|sgl_kernel|flashinfer|deep_gemm|transformers_modules)[/\"-]"
)
PLUMBING = re.compile(
    r"asyncio|contextlib|importlib|multiprocessing|threading|concurrent/futures|runpy|uvloop|torch/nn/modules/module"
    r"|_contextlib"
    r"|torch/_ops|functools|click/|typer/|/entrypoints/cli/|tracing/otel|site-packages/ray/"
)
# A group that the log did not fill, with the text around it.
OPEN_PLACE = re.compile(r" \([^()?]{0,60}\?[^()]{0,80}\)|: \?(?=[.,: )]|$)")


def known(
    match: Match,
    settings: LaunchSettings,
    exceptions: Sequence[LoggedException] = (),
    line: ErrorLine | None = None,
    reason: ErrorLine | None = None,
) -> Diagnosis:
    cause, groups = match
    message = exceptions[0].text if exceptions else line.message if line is not None else ""
    frames = [frame for exception in exceptions for frame in _telling_frames(exception, 1)]
    evidence = [next((frame for frame in frames if OWN.search(frame.text)), frames[0])] if frames else []
    for exception in exceptions:
        evidence += [exception.line, *_matching_lines(exception, cause)]
    if line is not None:
        evidence += [*([reason.line] if reason is not None else []), line.line]
    first = reason or line
    summary = with_names(
        OPEN_PLACE.sub("", cause.summary_for(groups)), cause, groups, exceptions, first.line.text if first else ""
    )
    found = Diagnosis(
        summary=with_problem(summary, message),
        family=cause.family,
        cause=cause.name,
        evidence=shown(evidence),
        fix=settings.without_idle(
            corrected(
                cause.fix_for(groups, settings.groups), groups, exceptions[0].text if exceptions else "", settings
            )
        ),
    )
    said = "\n".join(exception.text for exception in exceptions) or message
    found = with_forced(with_mending(found, cause, groups, settings, said), settings)
    if cause.name in IMPORT_CAUSES:
        return with_import(found, message, settings)
    if cause.family != SETTINGS_FAMILY:
        found = with_override(found, exceptions[0], settings) if exceptions else found
        return with_spoken(found, exceptions[0].text if exceptions else "", settings)
    named = with_origin(found, message, settings)
    if named == found and cause.name in GENERAL_CAUSES:
        return next((v for e in exceptions if (v := with_variable(found, e, settings)) != found), found)
    patch = found.fix.patch if found.fix is not None else None
    return named if patch is None or named.fix == found.fix or _is_narrower(named.fix, patch) else found


def unknown(
    exception: LoggedException,
    settings: LaunchSettings,
    site: FoundSite | None = None,
    raised_from_it: Sequence[LoggedException] = (),
) -> Diagnosis:
    """Of an exception that no row knows: what happened, to what, and which setting it speaks of, as far as that
    shows. `site` is where the engine's source raises it. `raised_from_it` are the later links of its chain, which may
    say whose it is."""
    if is_own_bug(exception) and not settings.speaks_of(exception.message):
        return _own_bug(exception)
    if is_refusal(exception):
        return with_origin(_unsupported_model(exception), exception.message, settings)
    axes = axes_of(exception)
    if axes.whose is None:
        axes = axes._replace(whose=next(filter(None, map(whose_of, raised_from_it)), None))
    what, whose = axes
    said = _headline(exception)[:MAX_TEXT]
    evidence = shown([*_telling_frames(exception, OWN_FRAMES), exception.line, *_speaking_lines(exception)])
    if site is not None:
        placed = _of_site(site, exception.type, said, exception.message, evidence, settings)
        return with_override(placed, exception, settings)
    about = is_subject(exception.message)  # whatever else the message mentions
    owner = whose.family if whose else None
    if whose is None or not whose.places.search(exception.type):  # an exception of its own is no matter of words
        owner = family_of(exception.text) or owner
    family = SETTINGS_FAMILY if about else owner
    summary = f"{whose.noun} {what.says}: {said}" if what and whose else f"The engine ended with {said}"
    fix = whose.without if what is None and whose and whose.without else _fix_of(what, family)
    fix = fix.replace("Correct it ", f"Correct {whose.noun[:1].lower()}{whose.noun[1:]} ") if whose is not None else fix
    if whose is not None and whose.name == "adapter" and what is not None and not about:
        fix = f"{what.fix} {whose.without}"
    found = Diagnosis(
        summary=summary,
        family=family,
        cause=axes.cause or (UNRECOGNISED if family else None),
        evidence=evidence,
        fix=Fix(text=with_advice(fix, exception.message)),
    )
    named = with_settings(found, exception.message, settings, whose.name if whose else None)
    return with_variable(found, exception, settings) if named == found else with_override(named, exception, settings)


def logged(line: EvidenceLine, site: FoundSite, settings: LaunchSettings) -> Diagnosis:
    """Of an error that the engine logged without raising it, and that no row knows."""
    words = line.text.strip()[:MAX_TEXT]
    return _of_site(site, "", words, words, shown([line]), settings)


def _of_site(
    site: FoundSite,
    kind: str,
    headline: str,
    message: str,
    evidence: tuple[EvidenceLine, ...],
    settings: LaunchSettings,
) -> Diagnosis:
    likely = (what for what in whats_said(message, kind) if _fits(what, site))
    what = next(likely, CHECK_FAILED if _is_check(site) else ERROR_REPORTED)
    summary = f"{NOUNS[site.area.owner]} {what.says}: {headline[:MAX_TEXT]}"
    if site.unique and not any(site.site.module in line.text for line in evidence):
        summary = (
            f"{summary.rstrip('.')}. {engine_named(site.engine).title} {site.version} says so at {site.site.place}."
        )
    found = Diagnosis(
        summary=summary,
        family=site.area.family,
        cause=f"{site.area.owner}-{what.name}",
        evidence=evidence,
        fix=Fix(
            text=_WITHOUT.get(site.area.owner, WAYS["weights"] if site.area.family == "weights" else what.fix)
            if what in (CHECK_FAILED, ERROR_REPORTED)
            else _fix_of(what, site.area.family)
        ),
    )
    return with_condition(with_settings(found, message, settings, site.area.owner, site.captured), site, settings)


def _fix_of(what: What | None, family: str | None) -> str:
    """What is the model's, or another part's, is no setting that could be removed."""
    way = WAYS.get(family or "")
    if what is None:
        return f"Ingot does not recognise this error. {way}" if way is not None else NOT_RECOGNISED
    unset = what is WRONG_KIND and family not in (SETTINGS_FAMILY, MODEL_FAMILIES[0])
    if (unset or family in OF_NO_SETTING) and way is not None:
        return way
    if what.name not in (*OF_VALUES, "exhausted") and (what.name, family) not in OF_AN_IMAGE:
        return what.fix
    return OF_MODEL if family == MODEL_FAMILIES[0] and what.name in OF_VALUES else way or what.fix


def _fits(what: What, site: FoundSite) -> bool:
    """Whether the words mean this of such a subject: only a setting is refused or too large, and only what talks over
    a network is unreachable."""
    if what.name in OF_SETTINGS:
        return site.area.family == SETTINGS_FAMILY and site.site.kind != "assert"
    return what.name != "unreachable" or site.area.family in NETWORK_FAMILIES or site.area.owner in NETWORK_OWNERS


def _is_check(site: FoundSite) -> bool:
    return site.site.type in CHECKS


def _headline(exception: LoggedException) -> str:
    """With the code that raised it, where the message says nothing of what was wrong there; of one without a message,
    as a failed assertion is, that code alone."""
    code = exception.frames[-1][1] if exception.frames else ""
    if code and not exception.message:
        return f"{exception.type}: {code}"
    speaks = NAMES.search(exception.message) is not None and OF_A_WRONG_KIND.match(exception.message) is None
    return exception.headline if speaks or not code else f"{exception.headline} (in: {code})"


def _own_bug(exception: LoggedException) -> Diagnosis:
    return Diagnosis(
        summary=f"A bug in Ingot ended the engine: {exception.headline[:MAX_TEXT]}",
        family="bug",
        cause="own-code",
        evidence=shown([*_telling_frames(exception, OWN_FRAMES), exception.line, *_speaking_lines(exception)]),
        fix=Fix(
            text="Your settings are not the cause. Please report it, and attach the launch's export: its page has a "
            "button for it, and this command writes the latest launch's.",
            look=EXPORT,
        ),
    )


def _unsupported_model(exception: LoggedException) -> Diagnosis:
    return Diagnosis(
        summary=f"This engine does not support the model: {exception.headline[:MAX_TEXT]}",
        family=MODEL_FAMILIES[0],
        cause=UNRECOGNISED,
        evidence=shown([*_telling_frames(exception, OWN_FRAMES), exception.line, *_speaking_lines(exception)]),
        fix=Fix(text="Check the model's config.json, or use a model that this engine supports."),
    )


def said(lines: Sequence[EvidenceLine], settings: LaunchSettings) -> Diagnosis:
    """Without an exception: the message with which a program gave up, on one or two lines."""
    words = " ".join(line.text.strip() for line in lines)[:MAX_TEXT]
    what = what_said(words)
    family = SETTINGS_FAMILY if USAGE.search(words) else family_of(words)
    found = Diagnosis(
        summary=f"The engine ended with the message: {words}",
        family=family,
        cause=UNRECOGNISED if family else None,
        evidence=shown(lines),
        fix=Fix(text=with_advice(_fix_of(what, family), words)),
    )
    return with_origin(found, words, settings)


def cut_short(exception: LoggedException, message: str) -> Diagnosis:
    """A traceback whose end, with the exception itself, the log does not hold. `message` is what was logged of it
    before."""
    family = family_of(message)
    what = what_of(replace(exception, message=message)) if message else None
    return Diagnosis(
        summary=f"The engine ended with the message: {message[:MAX_TEXT]}"
        if message
        else "The log ends within a traceback, before the exception itself.",
        family=family,
        cause=UNRECOGNISED if family else None,
        evidence=shown(_telling_frames(exception, OWN_FRAMES)),
        fix=Fix(
            text=what.fix
            if what
            else "Get the rest of the log, and diagnose it again. If there is no more, start the engine again."
        ),
    )


def restart_loop(times: int, line: EvidenceLine) -> Diagnosis:
    return Diagnosis(
        summary=f"The engine keeps restarting ({times:,} times so far), and the log does not say why.",
        family="crash-loop",
        cause="restart-loop",
        evidence=shown([line]),
        fix=Fix(text="Stop it, start it once by hand, and read the first error."),
    )


def with_restarts(found: Diagnosis, times: int, line: EvidenceLine) -> Diagnosis:
    again = "once" if times == 1 else f"{times:,} times"
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. It was restarted {again}.",
        evidence=(*found.evidence, *shown([line])),
    )


def placed(exception: LoggedException, lines: Sequence[EvidenceLine]) -> LoggedException:
    """The same exception with the line numbers that it has in `lines`; 0 where it does not stand there."""
    wanted = exception.line.text
    place = next((line for line in lines if line.text.endswith(wanted)), EvidenceLine(0, wanted))
    frames = [(EvidenceLine(0, frame.text), code) for frame, code in exception.frames]
    for frame, code in frames[-1:]:
        within = [line for line in lines if line.number < place.number and line.text.endswith(frame.text)]
        if within:
            frames[-1] = (EvidenceLine(within[-1].number, frame.text), code)
    return LoggedException(
        type=exception.type,
        message=exception.message,
        text=exception.text,
        line=EvidenceLine(place.number, wanted),
        frames=tuple(frames) if place.number else exception.frames,
        start=place.number,
    )


def shown(lines: Sequence[EvidenceLine]) -> tuple[EvidenceLine, ...]:
    """Those that stand in the log, each once, in order, and not too long."""
    by_number = {line.number: line for line in lines if line.number}
    return tuple(
        EvidenceLine(number, by_number[number].text.strip()[:MAX_TEXT]) for number in sorted(by_number)[:MAX_EVIDENCE]
    )


def _is_narrower(fix: Fix | None, patch: Mapping[str, Any]) -> bool:
    """Whether it sets one value, or removes one setting of a group that the patch removes."""
    own = (fix.patch or {}) if fix is not None else {}
    return any(value is not None or any(key.startswith(f"{group}.") for group in patch) for key, value in own.items())


def _matching_lines(exception: LoggedException, cause: Cause) -> list[EvidenceLine]:
    """The lines of its message by which the cause is known."""
    if not exception.body:
        return []
    lines = [exception.line, *exception.body]
    starts = [0, *accumulate(len(part) + 1 for part in exception.text.split("\n"))]
    places = cause.places_in(without_dumps(exception.text))
    numbers = dict.fromkeys(bisect_right(starts, place) - 1 for place in places)
    return [lines[number] for number in numbers if 0 < number < len(lines)][:MATCHING_LINES]


def _speaking_lines(exception: LoggedException) -> list[EvidenceLine]:
    """The line of its message that the headline tells."""
    said = exception.headline.removeprefix(f"{exception.type}: ")
    return [line for line in exception.body if said in line.text][:1]


def _telling_frames(exception: LoggedException, count: int) -> list[EvidenceLine]:
    """The innermost places of the engine's own code; of others where there are none."""
    places = [place for place, _ in exception.frames]
    if not places:
        return []
    if count == 1:
        return [next((place for place in reversed(places) if OWN.search(place.text)), places[-1])]
    own = [place for place in places if OWN.search(place.text) and not PLUMBING.search(place.text)]
    return (own or [place for place in places if not PLUMBING.search(place.text)] or places)[-count:]
