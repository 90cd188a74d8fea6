"""Validates a document: each value against its row, each key against the known ones.

`check` collects all problems rather than the first, so that a form can show them beside their fields.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from appliance.profile import several_hosts, site_backends, sizes, spellings, vllm_options
from appliance.profile.nearest import nearest_choice
from appliance.profile.schema import BY_KEY, SECTIONS, SETTINGS, Problem, Setting, Type
from appliance.profile.shown import plain, shown

MISSING: Final = object()
# What each kind of vLLM flag takes, for people.
_KINDS: Final = {
    "integer": "a whole number", "number": "a number", "boolean": "true or false", "text": "text",
    "json": "JSON text", "integers": "a list of whole numbers",
}  # fmt: skip


def check(document: Mapping[str, Any]) -> list[Problem]:
    """All problems of a document; a valid profile has none."""
    return list(_problems(document))


def get(document: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key as the document gives it, or MISSING."""
    value: Any = document
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def _problems(document: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _unknown_keys(document)
    broken = {name for name in SECTIONS if not isinstance(document.get(name, {}), Mapping)}
    for section in sorted(broken):
        yield _wrong_type(section, document[section], "a mapping of settings", f"Write the settings under {section!r}.")
    for setting in SETTINGS:
        if setting.key.split(".")[0] in broken:
            continue
        given = get(document, setting.key)
        if given is MISSING:
            if setting.required:
                remedy = f"Add `{_as_yaml(setting.key)}`. {setting.help}"
                yield Problem(field=setting.key, value=None, message="Required.", remedy=remedy)
        elif given is None:
            if setting.none is None:
                yield _wrong_type(setting.key, None, _expected(setting), "Give a value, or leave the key out.")
        else:
            yield from _judge(setting, given)
    if not broken:
        yield from several_hosts.problems(lambda key: get(document, key), MISSING)


def _as_yaml(key: str) -> str:
    section, _, name = key.rpartition(".")
    return f"{section}: {{{name}: ...}}" if section else f"{name}: ..."


def _unknown_keys(document: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in document.items():
        if isinstance(key, str) and key in SECTIONS:
            if isinstance(value, Mapping):
                known = [other.split(".", 1)[1] for other in BY_KEY if other.startswith(f"{key}.")]
                yield from (_unknown(document, key, inner, known) for inner in value if inner not in known)
        elif not isinstance(key, str) or key not in BY_KEY or "." in key:
            yield _unknown(document, "", key, [other for other in BY_KEY if "." not in other] + list(SECTIONS))


def _unknown(document: Mapping[str, Any], section: str, key: Any, known: list[str]) -> Problem:
    value = document[section][key] if section else document[key]
    field = f"{section}.{key}" if section else str(key)
    spelled = spellings.kebab(key) if isinstance(key, str) else str(key)
    in_full = [other for other in BY_KEY if other == spelled or other.endswith(f".{spelled}")]
    nearest = [spelled] if spelled in known else difflib.get_close_matches(spelled[:64], known, n=1, cutoff=0.6)
    right = ""
    if nearest:
        right = f"{section}.{nearest[0]}" if section else nearest[0]
        remedy = f"Did you mean `{right}`? Otherwise remove the key."
    elif in_full:
        right = in_full[0]
        remedy = f"Write it as `{_as_yaml(right)}`."
    else:
        remedy = f"Remove it. Known settings: {', '.join(sorted(known))}."
    patch: dict[str, Any] | None = {field: None}
    if right in BY_KEY and get(document, right) is MISSING:
        # Where the value does not fit either, removing it would lose what was meant.
        patch = None if list(_judge(BY_KEY[right], value)) else {field: None, right: value}
    return Problem(
        field=plain(field)[:128],
        value=shown(value),
        message="Unknown setting.",
        remedy=remedy,
        # A patch's dots are levels of the document, and it travels as UTF-8.
        patch=None if "." in str(key) or plain(field) != field else patch,
    )


def _wrong_type(field: str, value: Any, expected: str, remedy: str) -> Problem:
    kind = {
        bool: "true or false", int: "a whole number", float: "a decimal number", str: "text", list: "a list",
        dict: "a mapping", type(None): "null",
    }.get(type(value), f"a {type(value).__name__}")  # fmt: skip
    return Problem(field=field, value=shown(value), message=f"Must be {expected}, not {kind}.", remedy=remedy)


def _expected(setting: Setting) -> str:
    return {
        Type.TEXT: "text", Type.INTEGER: "a whole number", Type.NUMBER: "a number", Type.BOOLEAN: "true or false",
        Type.SIZE: 'a number of bytes, or text such as "2 GiB"', Type.OPTIONS: "a mapping",
    }[setting.type]  # fmt: skip


def _judge(setting: Setting, value: Any) -> Iterator[Problem]:
    expected = _expected(setting)
    # bool is a subclass of int in Python; in a profile `true` is not a number.
    right_type = {
        Type.TEXT: isinstance(value, str),
        Type.INTEGER: isinstance(value, int) and not isinstance(value, bool),
        Type.NUMBER: isinstance(value, int | float) and not isinstance(value, bool),
        Type.BOOLEAN: isinstance(value, bool),
        Type.SIZE: isinstance(value, int | str) and not isinstance(value, bool),
        Type.OPTIONS: isinstance(value, Mapping),
    }[setting.type]
    if not right_type:
        yield _wrong_type(setting.key, value, expected, _type_remedy(setting, value))
        return
    if setting.type is Type.OPTIONS:
        yield from _judge_options(setting.key, value)
        return
    number = value
    if setting.type is Type.SIZE and isinstance(value, str):
        try:
            number = sizes.parse_size(value)
        except ValueError:
            remedy = "Write a whole number of bytes, or a number with B, KiB, MiB, GiB, TiB, KB, MB, GB or TB."
            yield _problem(setting, value, "Not a size.", remedy)
            return
    if setting.allowed and value not in setting.allowed:
        allowed = {str(each): each for each in setting.allowed}
        choices = ", ".join(allowed)
        nearest = nearest_choice(str(value)[:64], list(allowed))
        remedy = f"Did you mean `{nearest}`? One of: {choices}." if nearest else f"Choose one of: {choices}."
        patch = {setting.key: allowed[nearest]} if nearest else None
        yield _problem(setting, value, "Not one of the allowed values.", remedy, patch)
    elif isinstance(number, str):
        yield from _judge_text(setting, number)
    elif not isinstance(number, bool):
        yield from _judge_number(setting, number, value)


def _problem(setting: Setting, value: Any, message: str, remedy: str, patch: dict[str, Any] | None = None) -> Problem:
    return Problem(field=setting.key, value=shown(value), message=message, remedy=remedy, patch=patch)


def _type_remedy(setting: Setting, value: Any) -> str:
    if setting.type is Type.BOOLEAN:
        if isinstance(value, str) and value.lower() in ("yes", "on", "y", "true", "1"):
            return "Write `true`."
        if isinstance(value, str) and value.lower() in ("no", "off", "n", "false", "0"):
            return "Write `false`."
        return "Write `true` or `false`."
    if setting.type is Type.TEXT:
        return "Put the value in quotes." if isinstance(value, bool | int | float) else "Write a single text value."
    if setting.type in (Type.INTEGER, Type.NUMBER):
        if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", value):
            return "Write the number without quotes."
        kind = "a whole number" if setting.type is Type.INTEGER else "a number"
        limits = setting.range_text()
        return f"Write {kind} {limits}." if limits else f"Write {kind}, such as {setting.default or 1}."
    return f"Write {_expected(setting)}."


def _judge_text(setting: Setting, value: str) -> Iterator[Problem]:
    if not value:
        yield _problem(setting, value, "Must not be empty.", "Give a value, or leave the key out.")
    elif len(value) > setting.max_length:
        yield _problem(setting, value, f"Too long: {len(value):,} characters.", f"Use at most {setting.max_length:,}.")
    elif not value.isprintable():  # also lone surrogates and NUL, which no file system takes
        yield _problem(setting, ascii(value), "Contains a control character.", "Remove it.")
    elif setting.pattern and not re.fullmatch(setting.pattern.removeprefix("^").removesuffix("$"), value, re.ASCII):
        yield _problem(setting, value, "Not in the required form.", f"Use {setting.pattern_help}.")


def _judge_number(setting: Setting, number: float, given: Any) -> Iterator[Problem]:
    low = setting.minimum is not None and number < setting.minimum
    at_open_end = setting.above is not None and number <= setting.above
    high = setting.maximum is not None and number > setting.maximum
    if (isinstance(number, float) and not math.isfinite(number)) or low or at_open_end or high:
        unit = f" {setting.unit}" if setting.unit else ""
        limits = setting.range_text()
        remedy = f"Give a value {'of ' * limits.startswith('at ')}{limits}{unit}."
        seen = shown(given)
        told = f"{seen:,}" if isinstance(seen, int) else seen
        yield _problem(setting, given, f"{told} is out of range.", remedy)


def _judge_options(field: str, options: Mapping[Any, Any]) -> Iterator[Problem]:
    if field == site_backends.KEY:
        for name, backend in options.items():
            if (wrong := site_backends.objection(name, backend)) is not None:
                message, remedy = wrong
                where = plain(f"{field}.{name}")[:128]
                yield Problem(field=where, value=shown(backend), message=message, remedy=remedy)
        return
    known = vllm_options.FLAG_BY_NAME if field == "vllm.extra-args" else vllm_options.VARIABLE_BY_NAME
    for name, value in options.items():
        where = plain(f"{field}.{name}")[:128]
        if not isinstance(name, str) or name not in known:
            yield Problem(
                field=where, value=shown(value), message=_not_listed(name), remedy=_instead(name, list(known))
            )
        elif isinstance(entry := known[name], vllm_options.Variable):
            if not vllm_options.variable_matches(entry, value):
                yield _not_a_value(where, entry, value)
        else:
            yield from _judge_flag(where, entry, value)


def _not_a_value(where: str, variable: vllm_options.Variable, value: Any) -> Problem:
    remedy = f"{variable.help} Write text that matches {variable.pattern}, in quotes."
    nearest = nearest_choice(str(value)[:64], variable.choices)
    if variable.choices:
        meant = f"Did you mean `{nearest}`? " if nearest else ""
        remedy = f"{variable.help} {meant}One of: {', '.join(variable.choices)}."
    patch = {where: nearest} if nearest else None
    return Problem(field=where, value=shown(value), message="Not a valid value.", remedy=remedy, patch=patch)


def _not_listed(name: Any) -> str:
    if name in vllm_options.GONE:
        return "Current vLLM no longer has this."
    if name in vllm_options.INSTEAD:
        ours = vllm_options.INSTEAD[name]
        return (
            "The profile has its own setting for this." if ours else "Not allowed: it reaches outside the model folder."
        )
    return "Not on the list of options that may be passed to vLLM."


def _instead(name: Any, known: list[str]) -> str:
    if name in vllm_options.GONE:
        successor = vllm_options.GONE[name]
        return f"Use `{successor}`." if successor else "Remove it."
    ours = vllm_options.INSTEAD.get(name)
    if ours:
        return f"Use `{ours}`."
    nearest = difflib.get_close_matches(str(name)[:64], known, n=1) if name not in vllm_options.INSTEAD else []
    return f"Did you mean `{nearest[0]}`?" if nearest else "Remove it."


def _judge_flag(where: str, flag: vllm_options.Flag, value: Any) -> Iterator[Problem]:
    wanted = {
        "integer": int, "number": int | float, "boolean": bool, "text": str, "json": str, "integers": list,
    }[flag.kind]  # fmt: skip
    if not isinstance(value, wanted) or (isinstance(value, bool) and flag.kind != "boolean"):
        yield _wrong_type(where, value, _KINDS[flag.kind], flag.help)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(field=where, value=str(value), message="Not a finite number.", remedy=flag.help)
    elif isinstance(value, int) and abs(value) >= 1 << 63:
        yield Problem(field=where, value=shown(value), message="Out of range.", remedy="Use a smaller number.")
    elif isinstance(value, str) and (len(value) > 4096 or not value.isprintable()):
        yield Problem(
            field=where,
            value=shown(ascii(value)),
            message="Not plain text.",
            remedy="Write one line of printable text.",
        )
    elif message := vllm_options.flag_problem(flag, value):
        nearest = nearest_choice(value[:64], flag.choices) if isinstance(value, str) else None
        remedy = f"{flag.help} Did you mean `{nearest}`?" if nearest else flag.help
        patch = {where: nearest} if nearest else None
        yield Problem(field=where, value=shown(value), message=message, remedy=remedy, patch=patch)
