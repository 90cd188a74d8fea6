"""The spellings of vLLM's users, read as ours: `max_model_len`, `--max-model-len`, `enable-prefix-caching`.

`document.parse` applies this to every text that a person or a file brings, so those spellings are accepted wherever a
profile is typed, and never stored. `document.check` knows the one canonical spelling only.
"""

from __future__ import annotations

from typing import Any, Final

from appliance.profile.schema import SECTIONS, Problem, ProfileError

# (their key, our dotted key, whether a boolean is to be turned round)
ALIASES: Final = (
    ("attention-backend", "backends.attention", False),
    ("enable-prefix-caching", "prefix-caching", False),
    ("no-enable-prefix-caching", "prefix-caching", True),
    ("no-enforce-eager", "enforce-eager", True),
    ("tp", "tensor-parallel-size", False),
)
_BY_ALIAS: Final = {theirs: (ours, turned) for theirs, ours, turned in ALIASES}


def kebab(key: str) -> str:
    """`--max_model_len` -> `max-model-len`."""
    return key.removeprefix("--").replace("_", "-")


def canonical(document: dict[str, Any]) -> dict[str, Any]:
    """The document in our spelling; raises ProfileError where two spellings of one setting stand side by side."""
    result: dict[str, Any] = {}
    given_as: dict[str, str] = {}

    def put(dotted: str, original: str, value: Any) -> None:
        if dotted in given_as:
            message = f"Given twice: as {given_as[dotted]!r} and as {original!r}."
            raise ProfileError([Problem(field=dotted, value=value, message=message, remedy=f"Keep {dotted!r}.")])
        given_as[dotted] = original
        section, _, name = dotted.rpartition(".")
        if section:
            result.setdefault(section, {})[name] = value
        else:
            result[dotted] = value

    for original, value in document.items():
        key = kebab(original)
        if key in SECTIONS and isinstance(value, dict) and isinstance(result.get(key, {}), dict):
            given_as.setdefault(key, original)
            result.setdefault(key, {})
            for name, inner in value.items():
                ours = f"{key}.{kebab(name)}"
                put(ours, f"{original}.{name}", _flags(inner) if ours == "vllm.extra-args" else inner)
        elif key in _BY_ALIAS:
            ours, turned = _BY_ALIAS[key]
            put(ours, original, not value if turned and isinstance(value, bool) else value)
        elif key == "model" and isinstance(value, str):
            put("model.path", original, value)
        else:
            put(key if "." not in key else original, original, value)
    return result


def _flags(flags: Any) -> Any:
    """vLLM's flags as our list of them spells them."""
    if not isinstance(flags, dict):
        return flags
    spelled: dict[str, Any] = {}
    for name, value in flags.items():
        if kebab(name) in spelled:
            field = f"vllm.extra-args.{kebab(name)}"
            message = f"Given twice, the second time as {name!r}."
            raise ProfileError([Problem(field=field, value=value, message=message, remedy="Keep one of them.")])
        spelled[kebab(name)] = value
    return spelled
