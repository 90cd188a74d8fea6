"""The setting that a message names, where nothing shows that the launch set it: a flag, a variable of the environment,
or an option of the engine's."""

from __future__ import annotations

import difflib
import re

from appliance.diagnosis.provenance import CHOICE, CHOICES, FLAG, MISSPELT
from appliance.diagnosis.quoting import NAME
from appliance.diagnosis.stripping import without_dumps
from appliance.protocol import Fix

MAX_TEXT = 2000
VARIABLE = re.compile(r"\b(?:VLLM|NCCL|GLOO|HF|CUDA|SGLANG|TORCH|PYTORCH)_[A-Z0-9_]{2,60}\b")
SUBJECT = re.compile(
    r"(?:invalid (?:value )?(?:for )?|envs\.|environment variable )?'?(?P<name>VLLM_[A-Z0-9_]{2,60})\b"
)
COMPARED = re.compile(
    r"\((?P<needed>\d{1,9})\) (?:is|are) (?:larger|greater|more|longer) than [`']?(?P<name>[a-z][a-z_]{3,40})[`']?"
    r" \((?P<now>\d{1,9})\)"
)
SPOKEN_OF = re.compile(
    r"(?:configur\w{0,5}|settings?|options?|arguments?|parameters?|flags?) ['`\"](?P<name>[a-z][a-z0-9]{1,30}"
    r"(?:[_-][a-z0-9]{1,30}){1,6})['`\"]"
)
REFUSED = re.compile(r"invalid choice: '(?P<value>[^'\n]{1,80})'")


def is_subject(message: str) -> bool:
    """Whether the message speaks of a variable of the environment, whatever else it mentions."""
    return SUBJECT.match(message.lstrip()) is not None


def setting_named(message: str) -> str | None:
    """As it is set: --flag, or VARIABLE."""
    said = without_dumps(message[:MAX_TEXT])
    if (flag := FLAG.search(said)) is not None and said[flag.start() :].startswith("--"):
        return f"--{flag[1]}"
    if (variable := VARIABLE.search(said)) is not None:
        return variable[0]
    if (spoken := SPOKEN_OF.search(said)) is not None:
        return f"--{spoken['name'].replace('_', '-')}"
    names = [name.replace("_", "-") for name in NAME.findall(said)]
    return next((f"--{name}" for name in reversed(names) if name in _options()), None)


def fix_of(name: str, message: str) -> Fix:
    """The value that the message asks for, or the allowed one that is nearest, or else the default."""
    compared = COMPARED.search(message[:MAX_TEXT])
    if compared is not None and f"--{compared['name'].replace('_', '-')}" == name:
        needed = int(compared["needed"])
        return Fix(text=f"Set {name} to {needed:,} or more.", patch={_key(name): needed})
    nearest = _nearest(message[:MAX_TEXT])
    if nearest is not None:
        return Fix(text=f"Set {name} to {nearest}, or remove it.", patch={_key(name): nearest})
    return Fix(text=f"Correct {name}, or remove it to use its default.")


def _nearest(message: str) -> str | None:
    refused, found = REFUSED.search(message), CHOICES.search(message)
    if refused is None or found is None:
        return None
    near = difflib.get_close_matches(refused["value"], CHOICE.findall(found["list"]), n=1, cutoff=MISSPELT)
    return near[0] if near else None


def _key(name: str) -> str:
    """The profile's."""
    from appliance.profile.schema import BY_KEY  # late: most logs name no setting

    own = name.removeprefix("--")
    return own if own in BY_KEY else f"vllm.extra-args.{own}"


def _options() -> frozenset[str]:
    from appliance.profile.schema import BY_KEY  # late: most logs name no setting
    from appliance.profile.vllm_options import FLAG_BY_NAME, INSTEAD

    return frozenset((*BY_KEY, *FLAG_BY_NAME, *INSTEAD))
