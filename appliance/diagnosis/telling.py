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
    WHOSES,
    What,
    axes_of,
    what_of,
    what_said,
    whats_said,
    whose_of,
)
from appliance.diagnosis.catalogue import Match
from appliance.diagnosis.cause import Cause
from appliance.diagnosis.decisive import with_names
from appliance.diagnosis.error_lines import ErrorLine
from appliance.diagnosis.model_values import ModelValue
from appliance.diagnosis.named_settings import USAGE, VARIABLE, fix_of, is_subject, setting_named
from appliance.diagnosis.own_bugs import EXPORT, is_own_bug, is_refusal
from appliance.diagnosis.owner_settings import OF_FAMILY, with_settings_of
from appliance.diagnosis.provenance import LaunchSettings, nearest_choice
from appliance.diagnosis.raise_sites.areas import NOUNS
from appliance.diagnosis.raise_sites.lookup import FoundSite
from appliance.diagnosis.stripping import without_dumps
from appliance.diagnosis.traceback_reader import LoggedException
from appliance.diagnosis.validation import with_problem
from appliance.diagnosis.vocabulary import family_of
from appliance.engines import engine_named
from appliance.protocol import Diagnosis, EvidenceLine, Fix

MAX_TEXT = 500
NOT_RECOGNISED = "Ingot does not recognise this error. Send this launch's log to support."
UNRECOGNISED = "unrecognised"  # where only the wording hints at the family
MAX_EVIDENCE = 6
SETTINGS_FAMILY = "config"
# A value in the model's files may explain these.
MODEL_FAMILIES = ("model-config", "quant-dtype", "weights", "backend")
# What is said only of some of the places in an engine's source.
OF_SETTINGS = ("refused", "too-large")
OF_VALUES = ("refused", "too-large", "unsupported")
OF_MODEL = "Correct the value in the model's config.json, or use a model that this engine supports."
NETWORK_FAMILIES = ("multi-node", "nccl", "offline", "port")
NETWORK_OWNERS = ("connector", "executor", "kv-offload", "server")
CHECKS = ("AssertionError", "TypeError", "ValueError", "VLLMValidationError")
# Rows that know only that a setting was refused.
GENERAL_CAUSES = ("argument-value", "setting-refused", "setting-out-of-range")
# Rows of what cannot be imported, which a setting may have named.
IMPORT_CAUSES = ("package-missing", "call-does-not-fit", "import-name-missing")
NOT_IMPORTED = re.compile(
    r"No module named '?(?P<package>[\w.]{1,80})"
    r"|module '(?P<module>[\w.]{1,120})' has no attribute '(?P<name>\w{1,80})'"
)
NEW_LINE = "\n"
# Else it would count as source code that a message carries with it.
RAISES = "assert "
WEIGHTS = "weights"
NOT_LOADED = ("safetensors-damaged", "weights-not-loaded", "weight-file-missing")
UNPARSABLE = ("-unparsable", "config-not-json", "no-config-file")
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
    match: Match, settings: LaunchSettings, exceptions: Sequence[LoggedException] = (), line: ErrorLine | None = None
) -> Diagnosis:
    cause, groups = match
    message = exceptions[0].text if exceptions else line.message if line is not None else ""
    frames = [frame for exception in exceptions for frame in _telling_frames(exception, 1)]
    evidence = [next((frame for frame in frames if OWN.search(frame.text)), frames[0])] if frames else []
    for exception in exceptions:
        evidence += [exception.line, *_matching_lines(exception, cause)]
    if line is not None:
        evidence.append(line.line)
    summary = with_names(
        OPEN_PLACE.sub("", cause.summary_for(groups)), cause, groups, exceptions, line.line.text if line else ""
    )
    found = Diagnosis(
        summary=with_problem(summary, message),
        family=cause.family,
        cause=cause.name,
        evidence=shown(evidence),
        fix=_corrected(
            cause.fix_for(groups, settings.groups), groups, exceptions[0].text if exceptions else "", settings
        ),
    )
    if cause.name in IMPORT_CAUSES:
        return _with_import(found, message, settings)
    if cause.family != SETTINGS_FAMILY:
        found = _with_override(found, exceptions[0], settings) if exceptions else found
        return _with_spoken(found, exceptions[0].text if exceptions else "", settings)
    named = with_origin(found, message, settings)
    if named == found and cause.name in GENERAL_CAUSES:
        return next((v for e in exceptions if (v := _with_variable(found, e, settings)) != found), found)
    return named if cause.patch is None or named.fix == found.fix or _is_narrower(named.fix, cause.patch) else found


def with_damaged_file(found: Diagnosis, settings: LaunchSettings) -> Diagnosis:
    """Of a model's file that cannot be read, which one it is, and what to do about it."""
    cause = found.cause or ""
    error = None
    if found.family == MODEL_FAMILIES[0] and cause.endswith(UNPARSABLE):
        error = settings.damaged_file
    elif found.family == WEIGHTS and cause in NOT_LOADED:
        error = settings.damaged_weights
    if error is None:
        return found
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. {error.message}",
        fix=error.fix,
    )


def _with_import(found: Diagnosis, message: str, settings: LaunchSettings) -> Diagnosis:
    """With the setting that named what could not be imported, where it was one."""
    sought = NOT_IMPORTED.search(message)
    origin = settings.importing(sought["module"] or sought["package"], sought["name"] or "") if sought else None
    if origin is None:
        return _with_package(found, sought["package"] if sought else None, settings)
    return msgspec.structs.replace(
        found,
        summary=f"A setting names what cannot be imported: {message.partition(NEW_LINE)[0][:MAX_TEXT]}. "
        f"{origin.told} is {origin.value[:MAX_TEXT]}.",
        family=SETTINGS_FAMILY,
        cause="setting-not-importable",
        fix=settings.fix_of(origin, ""),
    )


def _with_package(found: Diagnosis, package: str | None, settings: LaunchSettings) -> Diagnosis:
    """With the setting that needs the package that is missing: the launch can do without either."""
    origin = settings.asking_for(package) if package else None
    if origin is None:
        return found
    changed = settings.fix_of(origin, "")
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. {origin.told} is {origin.value}.",
        fix=msgspec.structs.replace(changed, text=f"{changed.text} Or install {package} where the engine runs."),
    )


def _with_spoken(found: Diagnosis, message: str, settings: LaunchSettings) -> Diagnosis:
    """With the launch's own setting, where the model's files may say as well what the message speaks of by its name."""
    if found.family not in MODEL_FAMILIES or found.fix is None or found.fix.patch:
        return found
    origin = settings.spoken_of(message) or settings.among(OF_FAMILY.get(found.family, ()), message)
    if origin is None and found.family == WEIGHTS:
        origin = settings.deciding(
            ("hf_overrides",)
        )  # what fits the checkpoint's own config.json need not fit this one
    if origin is None or found.fix.command:
        return found
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. {origin.told} is {origin.value[:MAX_TEXT]}.",
        fix=settings.fix_of(origin, message),
    )


def _corrected(fix: Fix, groups: Mapping[str, str], message: str, settings: LaunchSettings) -> Fix:
    """Where a row removes the setting whose value it captured, and the message lists a value which that misspells: set
    to this."""
    key = next((key for key, value in (fix.patch or {}).items() if value is None), None)
    nearest = nearest_choice(groups.get("value", ""), message) if key is not None else None
    if key is None or nearest is None or not settings.accepts({key: nearest}):
        return fix
    return msgspec.structs.replace(fix, text=f"Set {key.rpartition('.')[2]} to {nearest}.", patch={key: nearest})


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
        return _with_override(placed, exception, settings)
    about = is_subject(exception.message)  # whatever else the message mentions
    owner = whose.family if whose else None
    if whose is None or not whose.places.search(exception.type):  # an exception of its own is no matter of words
        owner = family_of(exception.text) or owner
    family = SETTINGS_FAMILY if about else owner
    summary = f"{whose.noun} {what.says}: {said}" if what and whose else f"The engine ended with {said}"
    fix = _fix_of(what, family) if what else whose.without if whose and whose.without else NOT_RECOGNISED
    if whose is not None and whose.name == "adapter" and what is not None and not about:
        fix = f"{what.fix} {whose.without}"
    found = Diagnosis(
        summary=summary,
        family=family,
        cause=axes.cause or (UNRECOGNISED if family else None),
        evidence=evidence,
        fix=Fix(text=fix),
    )
    named = _with_settings(found, exception.message, settings, whose.name if whose else None)
    return _with_variable(found, exception, settings) if named == found else _with_override(named, exception, settings)


def _with_override(found: Diagnosis, exception: LoggedException, settings: LaunchSettings) -> Diagnosis:
    """With what replaces a value of the model's, where message or code compare this value."""
    if found.family not in MODEL_FAMILIES or found.fix is None or found.fix.patch:
        return found
    code = exception.frames[-1][1] if exception.frames else ""
    origin = settings.overriding(f"{exception.message} {code.removeprefix(RAISES)}")
    if origin is None:
        return found
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. {origin.told} is {origin.value[:MAX_TEXT]}.",
        fix=settings.fix_of(origin, exception.message),
    )


def _with_variable(found: Diagnosis, exception: LoggedException, settings: LaunchSettings) -> Diagnosis:
    """With the variable of the environment that the innermost line of code reads, where the message names nothing."""
    read = VARIABLE.search(exception.frames[-1][1]) if exception.frames else None
    if read is None or found.family not in (None, SETTINGS_FAMILY):
        return found
    name = read[0]
    told = msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. It was read from {name}.",
        family=SETTINGS_FAMILY,
        cause=found.cause or UNRECOGNISED,
    )
    return with_origin(told, name, settings)


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
            text=_WITHOUT.get(site.area.owner, what.fix)
            if what in (CHECK_FAILED, ERROR_REPORTED)
            else _fix_of(what, site.area.family)
        ),
    )
    return with_condition(_with_settings(found, message, settings, site.area.owner, site.captured), site, settings)


def with_condition(found: Diagnosis, site: FoundSite, settings: LaunchSettings) -> Diagnosis:
    """Where nothing in the message says which setting it is about: the one that the place in the source asks for before
    it comes to this."""
    if found.fix is None or found.fix.patch or found.fix.command:
        return found
    origin = settings.deciding(site.site.when)
    if origin is None:
        return found
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. {origin.told} is {origin.value[:MAX_TEXT]}.",
        fix=settings.fix_of(origin, ""),
    )


def _with_settings(
    found: Diagnosis,
    message: str,
    settings: LaunchSettings,
    owner: str | None,
    captured: Mapping[str, str] | None = None,
) -> Diagnosis:
    """With the setting that the message speaks of; where it speaks of none, with those of its owner."""
    named = with_origin(found, message, settings, captured)
    return with_settings_of(found, owner, settings) if named == found else named


def _fix_of(what: What, family: str | None) -> str:
    """What is the model's is no setting that could be removed."""
    return OF_MODEL if family == MODEL_FAMILIES[0] and what.name in OF_VALUES else what.fix


def _fits(what: What, site: FoundSite) -> bool:
    """Whether the words mean this of such a subject: only a setting is refused or too large, and only what talks over
    a network is unreachable."""
    if what.name in OF_SETTINGS:
        return site.area.family == SETTINGS_FAMILY and site.site.kind != "assert"
    return what.name != "unreachable" or site.area.family in NETWORK_FAMILIES or site.area.owner in NETWORK_OWNERS


def _is_check(site: FoundSite) -> bool:
    return site.site.type in CHECKS


def _headline(exception: LoggedException) -> str:
    """Of one without a message, as a failed assertion is, the code that raised it."""
    code = exception.frames[-1][1] if exception.frames and not exception.message else ""
    return f"{exception.type}: {code}" if code else exception.headline


def _own_bug(exception: LoggedException) -> Diagnosis:
    return Diagnosis(
        summary=f"A bug in Ingot ended the engine: {exception.headline[:MAX_TEXT]}",
        family="bug",
        cause="own-code",
        evidence=shown([*_telling_frames(exception, OWN_FRAMES), exception.line, *_speaking_lines(exception)]),
        fix=Fix(
            text="Your settings are not the cause. Please report it, and attach the launch's export: its page has a "
            "button for it, and this command writes the latest launch's.",
            command=EXPORT,
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


def with_origin(
    found: Diagnosis, message: str, settings: LaunchSettings, captured: Mapping[str, str] | None = None
) -> Diagnosis:
    """With the setting that a message speaks of, and a fix that changes it; or else with what the model's files say.
    `captured` are the values in it whose names are known."""
    origin = settings.origin_of(message, captured)
    if origin is None:
        value = settings.model_value_of(message)
        return _with_named(found, message, settings) if value is None else _with_model_value(found, value)
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. {origin.told} is {origin.value[:MAX_TEXT]}.",
        family=found.family or SETTINGS_FAMILY,
        cause=found.cause or UNRECOGNISED,
        fix=settings.fix_of(origin, message),
    )


def _with_named(found: Diagnosis, message: str, settings: LaunchSettings) -> Diagnosis:
    """With a fix of the setting that the message names, where there was only a general one."""
    named = setting_named(message) if found.family in (None, SETTINGS_FAMILY) else None
    if named is None or found.fix is None or found.fix.patch or found.fix.command:
        return found
    if found.cause not in (None, UNRECOGNISED, *GENERAL_CAUSES):
        return found
    return msgspec.structs.replace(
        found, family=SETTINGS_FAMILY, cause=found.cause or UNRECOGNISED, fix=fix_of(named, message, settings.accepts)
    )


def _with_model_value(found: Diagnosis, value: ModelValue) -> Diagnosis:
    """A known cause has a fix of its own."""
    if found.family not in (None, *MODEL_FAMILIES):
        return found
    place = f"{value.key} in the model's {value.file}"
    own = found.cause is not None and found.cause != UNRECOGNISED
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. {place} is {value.value[:MAX_TEXT]}.",
        family=found.family or MODEL_FAMILIES[0],
        cause=found.cause or UNRECOGNISED,
        fix=found.fix if own else Fix(text=f"Correct {place}, or use a model that this engine supports."),
    )


def said(lines: Sequence[EvidenceLine], settings: LaunchSettings) -> Diagnosis:
    """Without an exception: the message with which a program gave up, on one or two lines."""
    words = " ".join(line.text.strip() for line in lines)[:MAX_TEXT]
    family, what = family_of(words), what_said(words)
    found = Diagnosis(
        summary=f"The engine ended with the message: {words}",
        family=SETTINGS_FAMILY if USAGE.search(words) else family,
        cause=UNRECOGNISED if family else None,
        evidence=shown(lines),
        fix=Fix(text=what.fix if what else NOT_RECOGNISED),
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
