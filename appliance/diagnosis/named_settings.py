"""The setting that a message names, where nothing shows that the launch set it: a flag, a variable of the environment,
or an option of the engine's."""

from __future__ import annotations

import difflib
import re
from typing import Any

from appliance.diagnosis.provenance import FLAG, LaunchSettings, nearest_choice, needed_by
from appliance.diagnosis.quoting import NAME
from appliance.diagnosis.stripping import without_dumps
from appliance.protocol import Fix

MAX_TEXT = 2000
VARIABLE = re.compile(r"\b(?:VLLM|NCCL|GLOO|HF|CUDA|SGLANG|TORCH|PYTORCH)_[A-Z0-9_]{2,60}\b")
SUBJECT = re.compile(
    r"(?:(?:invalid (?:value )?(?:for )?|envs\.)?'?(?P<name>VLLM_[A-Z0-9_]{2,60})"
    r"|(?:the )?env(?:ironment)?(?: variable)? '?(?P<any>[A-Z][A-Z0-9]{1,40}(?:_[A-Z0-9]{1,40}){1,8}))\b"
)
SPOKEN_OF = re.compile(
    r"(?:configur\w{0,5}|settings?|options?|arguments?|parameters?|flags?) ['`\"](?P<name>[a-z][a-z0-9]{1,30}"
    r"(?:[_-][a-z0-9]{1,30}){1,6})['`\"]"
)
# A setting whose value pydantic refused as a whole: SpeculativeConfig is --speculative-config.
OF_CLASS = re.compile(r"validation errors? for ([A-Z]\w{1,40}Config)\b")
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# How argparse refuses a command line, and the programs whose options are those of a profile.
USAGE = re.compile(r"(?:^|[\s:])(?P<program>[\w.-]{1,80})(?: [\w-]{1,40}){0,2}: error: ", re.MULTILINE)
UNKNOWN_ARGUMENT = re.compile(
    r"unrecognized arguments: (?P<flag>--[a-z][\w-]{1,60})(?:[= ](?P<value>[\w.+-]{1,60}))?\s{0,4}$", re.MULTILINE
)
ALIKE = 0.85  # so much of a flag's name is that of one that exists
# A command that a message quotes, whose flags are its own.
QUOTED_COMMAND = re.compile(r"\bCommand (?:'[^'\n]{1,400}'|\[[^\]\n]{1,400}\])")
OURS = re.compile(r"(?:vllm|ingot|api_server\.py|EngineArgs)", re.IGNORECASE)
REFUSED = re.compile(r"invalid choice: '?(?P<value>[^'\n(]{1,80}?)'?(?: \(|$)")


def is_subject(message: str) -> bool:
    """Whether the message speaks of a variable of the environment, whatever else it mentions."""
    return SUBJECT.match(message.lstrip()) is not None


def setting_named(message: str) -> str | None:
    """As it is set: --flag, or VARIABLE."""
    said = QUOTED_COMMAND.sub("", without_dumps(message[:MAX_TEXT]))
    if (flag := FLAG.search(said)) is not None and said[flag.start() :].startswith("--"):
        return f"--{flag[1]}"
    if (subject := SUBJECT.match(said.lstrip())) is not None:
        return subject["name"] or subject["any"]
    if (variable := VARIABLE.search(said)) is not None:
        return variable[0]
    if (spoken := SPOKEN_OF.search(said)) is not None:
        return f"--{spoken['name'].replace('_', '-')}"
    names = [name.replace("_", "-") for name in NAME.findall(said)]
    names += [HUMP.sub("-", name).lower() for name in OF_CLASS.findall(said)]
    return next((f"--{name}" for name in reversed(names) if name in _options()), None)


def fix_of(name: str, message: str, settings: LaunchSettings) -> Fix:
    """The value that the message asks for, or the allowed one that is nearest, or else the default. It is a patch where
    a profile may say so, and the message is not another program's. The default is none for a launch whose profile is
    known: that does not set it."""
    said = message[:MAX_TEXT]
    argument = name.removeprefix("--").replace("-", "_")
    needed = needed_by(said, argument) if name.startswith("-") else None
    if needed is not None:
        return Fix(
            text=f"Set {name} to {needed:,} or more.",
            patch=_patch(name, needed, said, settings),
            command=settings.command_also_with({argument: needed}),
        )
    nearest = _nearest(said)
    if nearest is not None:
        return Fix(
            text=f"Set {name} to {nearest}, or remove it.",
            patch=_patch(name, nearest, said, settings),
            command=settings.command_with(name, nearest),
        )
    removed = None if settings.of_a_profile or not is_settable(name) else _patch(name, None, said, settings)
    return Fix(
        text=f"Correct {name}, or remove it to use its default.",
        patch=removed,
        command=None if is_of_another_program(said) else settings.command_with(name, None),
    )


def respelt(message: str, settings: LaunchSettings) -> Fix | None:
    """The flag that an unknown one misspells, or that took its place, set to its value."""
    from appliance.profile.vllm_options import GONE  # late: most logs name no setting

    found = UNKNOWN_ARGUMENT.search(message[:MAX_TEXT])
    if found is None or is_of_another_program(message):
        return None
    name = found["flag"].removeprefix("--").replace("_", "-")
    now = GONE.get(name)
    near = difflib.get_close_matches(name, _options() - {name}, n=1, cutoff=ALIKE)
    if now is not None:
        return Fix(text=f"Remove --{name}: this release has --{now} in its place.")
    if not near:
        return None
    value = int(found["value"]) if (found["value"] or "").isdecimal() else found["value"]
    patch = None if settings.of_a_profile or value is None else _patch(f"--{near[0]}", value, message, settings)
    command = settings.command_respelt(name, near[0])
    return Fix(text=f"Write --{near[0]} instead of --{name}.", patch=patch, command=command)


def _patch(name: str, value: int | str | None, message: str, settings: LaunchSettings) -> dict[str, Any] | None:
    patch = {_key(name): value}
    return patch if not is_of_another_program(message) and settings.accepts(patch) else None


def is_of_another_program(message: str) -> bool:
    """Whether a program whose settings a profile does not hold refused its command line."""
    usage = USAGE.search(message)
    return usage is not None and OURS.fullmatch(usage["program"]) is None


def _nearest(message: str) -> str | None:
    refused = REFUSED.search(message)
    return nearest_choice(refused["value"], message) if refused is not None else None


def is_settable(name: str) -> bool:
    """Whether a profile may set it at all."""
    from appliance.profile.schema import BY_KEY  # late: most logs name no setting
    from appliance.profile.vllm_options import FLAG_BY_NAME, VARIABLE_BY_NAME

    section, _, last = _key(name).rpartition(".")
    return f"{section}.{last}".lstrip(".") in BY_KEY or last in FLAG_BY_NAME or last in VARIABLE_BY_NAME


def _key(name: str) -> str:
    """The profile's, for a setting of vLLM."""
    from appliance.profile.schema import BY_KEY  # late: most logs name no setting
    from appliance.profile.vllm_options import FLAG_BY_NAME, INSTEAD

    bare = name.removeprefix("--")
    if bare not in FLAG_BY_NAME and (own := INSTEAD.get(bare) or bare) in BY_KEY:
        return own
    return f"vllm.extra-args.{bare}" if bare != name else f"vllm.environment.{name}"


def _options() -> frozenset[str]:
    from appliance.profile.schema import BY_KEY  # late: most logs name no setting
    from appliance.profile.vllm_options import FLAG_BY_NAME, INSTEAD

    return frozenset((*BY_KEY, *FLAG_BY_NAME, *INSTEAD))
