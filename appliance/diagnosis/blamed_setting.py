"""The setting that a diagnosis comes down to, or the value or file of the model: added to its summary, with a fix that
changes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

import msgspec

from appliance.diagnosis.model_values import ModelValue
from appliance.diagnosis.named_settings import VARIABLE, fix_of, respelt, setting_named
from appliance.diagnosis.owner_settings import OF_FAMILY, with_settings_of
from appliance.diagnosis.provenance import LaunchSettings, nearest_choice
from appliance.diagnosis.raise_sites.lookup import FoundSite
from appliance.diagnosis.restoring import in_words
from appliance.diagnosis.traceback_reader import LoggedException
from appliance.protocol import Diagnosis, Fix

UNRECOGNISED = "unrecognised"  # where only the wording hints at the family
SETTINGS_FAMILY = "config"
# A value in the model's files may explain these.
MODEL_FAMILIES = ("model-config", "quant-dtype", "weights", "backend")
# What a launch may have set in place of what the engine computes.
FORCED = {
    ("memory", "no-room-for-cache"): ("num_gpu_blocks_override",),
    ("memory", "cache-too-small"): ("num_gpu_blocks_override",),
}
# What a file of the model's can bring about.
FILE_FAMILIES = ("model-config", "quant-dtype", "weights")
FILE_CAUSES = ("call-does-not-fit",)  # as of a list where an object should stand
FROM_THE_DRIVE = "With the drive mounted from which it was imported, this copies what has changed once more."
# Rows that know only that a setting was refused.
GENERAL_CAUSES = ("argument-value", "setting-refused", "setting-out-of-range")
# Rows of flags that do not exist, and of values that are no JSON.
UNKNOWN_ARGUMENT = "unknown-argument"
NOT_JSON = "argument-not-json"
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
MAX_TEXT = 500
MAX_VALUE = 40


def with_origin(
    found: Diagnosis, message: str, settings: LaunchSettings, captured: Mapping[str, str] | None = None
) -> Diagnosis:
    """With the setting that a message speaks of, and a fix that changes it; or else with what the model's files say.
    `captured` are the values in it whose names are known."""
    origin = settings.origin_of(message, captured)
    if origin is None:
        value = settings.model_value_of(message)
        return _with_named(found, message, settings) if value is None else _with_model_value(found, value, settings)
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. {origin.told} is {origin.value[:MAX_TEXT]}.",
        family=found.family or SETTINGS_FAMILY,
        cause=found.cause or UNRECOGNISED,
        fix=settings.fix_of(origin, message),
    )


def _with_named(found: Diagnosis, message: str, settings: LaunchSettings) -> Diagnosis:
    """With a fix of the setting that the message names, where there was only a general one."""
    if found.cause == UNKNOWN_ARGUMENT:
        other = respelt(message, settings)
        return found if other is None else msgspec.structs.replace(found, fix=other)
    named = setting_named(message) if found.family in (None, SETTINGS_FAMILY) else None
    if named is None or found.fix is None or found.fix.mends:
        return found
    changed = fix_of(named, message, settings)
    if found.cause == NOT_JSON:  # how it is to be written is better than that it may go
        return msgspec.structs.replace(found, fix=msgspec.structs.replace(found.fix, patch=changed.patch))
    if found.cause not in (None, UNRECOGNISED, *GENERAL_CAUSES):
        added = changed.command if settings.of_a_profile else None  # by a site's wrapper around vLLM
        return msgspec.structs.replace(found, fix=msgspec.structs.replace(found.fix, command=added))
    return msgspec.structs.replace(found, family=SETTINGS_FAMILY, cause=found.cause or UNRECOGNISED, fix=changed)


def _with_model_value(found: Diagnosis, value: ModelValue, settings: LaunchSettings) -> Diagnosis:
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
        fix=found.fix
        if own
        else settings.restored(Fix(text=f"Correct {place}, or use a model that this engine supports."), value.file),
    )


def with_settings(
    found: Diagnosis,
    message: str,
    settings: LaunchSettings,
    owner: str | None,
    captured: Mapping[str, str] | None = None,
) -> Diagnosis:
    """With the setting that the message speaks of; where it speaks of none, with those of its owner."""
    named = with_origin(found, message, settings, captured)
    return with_settings_of(found, owner, settings) if named == found else named


def with_condition(found: Diagnosis, site: FoundSite, settings: LaunchSettings) -> Diagnosis:
    """Where nothing in the message says which setting it is about: the one that the place in the source asks for before
    it comes to this."""
    if found.fix is None or found.fix.mends:
        return found
    return _decided_by(site.site.when, found, settings)


def _decided_by(names: Iterable[str], found: Diagnosis, settings: LaunchSettings) -> Diagnosis:
    """With the first of these settings that the profile gives."""
    origin = settings.deciding(names)
    if origin is None:
        return found
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. {origin.told} is {origin.value[:MAX_TEXT]}.",
        fix=settings.fix_of(origin, ""),
    )


def with_override(found: Diagnosis, exception: LoggedException, settings: LaunchSettings) -> Diagnosis:
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


def with_right_sizes(found: Diagnosis, settings: LaunchSettings) -> Diagnosis:
    """Of a failure that may be the model's, with what config.json says otherwise than the weights."""
    fix = found.fix
    if found.family not in (None, *FILE_FAMILIES) or fix is None or fix.mends:
        return found
    if not settings.wrong_sizes:
        return found
    told = ", ".join(f"{key} {json.dumps(given)[:MAX_VALUE]}" for key, given, _ in settings.wrong_sizes)
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. The model's config.json has {told}, which its weights have not.",
        family=found.family or MODEL_FAMILIES[0],
        cause=found.cause or UNRECOGNISED,
        fix=settings.right_sizes(),
    )


def with_forced(found: Diagnosis, settings: LaunchSettings) -> Diagnosis:
    """With the setting that decides what the engine would compute: no other one changes it."""
    return _decided_by(FORCED.get((found.family or "", found.cause or ""), ()), found, settings)


def with_variable(found: Diagnosis, exception: LoggedException, settings: LaunchSettings) -> Diagnosis:
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


def with_import(found: Diagnosis, message: str, settings: LaunchSettings) -> Diagnosis:
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


def with_spoken(found: Diagnosis, message: str, settings: LaunchSettings) -> Diagnosis:
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
        fix=settings.restored(error.fix, *([error.file.name] if error.file is not None else [])),
    )


def with_changed_files(found: Diagnosis, settings: LaunchSettings) -> Diagnosis:
    """Of a failure that is the model's, which of its files have changed since it was imported, with what brings them
    back."""
    fix = found.fix
    of_a_file = found.family in FILE_FAMILIES or found.cause in FILE_CAUSES
    if not of_a_file or fix is None or fix.mends or not settings.changed_files:
        return found
    restored = settings.restored(fix, *settings.changed_files)
    if restored.command is None:
        return found
    files = in_words(settings.changed_files)
    return msgspec.structs.replace(
        found,
        summary=f"{found.summary.rstrip('.')}. {files} changed after the model was imported.",
        fix=msgspec.structs.replace(restored, text=f"{fix.text} {FROM_THE_DRIVE}"),
    )


def corrected(fix: Fix, groups: Mapping[str, str], message: str, settings: LaunchSettings) -> Fix:
    """Where a row removes the setting whose value it captured, and the message lists a value which that misspells: set
    to this."""
    key = next((key for key, value in (fix.patch or {}).items() if value is None), None)
    nearest = nearest_choice(groups.get("value", ""), message) if key is not None else None
    if key is None or nearest is None or not settings.accepts({key: nearest}):
        return fix
    return msgspec.structs.replace(fix, text=f"Set {key.rpartition('.')[2]} to {nearest}.", patch={key: nearest})
