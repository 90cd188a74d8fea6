"""Where a value that a message quotes comes from: the launch's profile, or the command line that its log prints, or the
model's files."""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.diagnosis.cause import Groups
from appliance.diagnosis.model_values import ModelValue, damaged_file_in, damaged_weights_in, model_value_in
from appliance.diagnosis.own_settings import dumps_in, own_settings
from appliance.diagnosis.printed_command import (
    changed_command,
    command_without_variables,
    extended_command,
    model_on_the_hub,
)
from appliance.diagnosis.quoting import NAME, QUOTED, is_after_noun, is_distinct
from appliance.diagnosis.restoring import changed_since_import, recoding_command, restoring_command
from appliance.diagnosis.searchable import Searchable
from appliance.diagnosis.shell_words import is_variable
from appliance.diagnosis.site_wrapper import SiteWrapper, read_wrapper
from appliance.diagnosis.sizes_in_weights import Difference, correcting_command, differences
from appliance.diagnosis.stripping import without_dumps
from appliance.engines import engine_named
from appliance.protocol import Fix
from appliance.redaction import holds_secret
from appliance.secret_names import is_secret_name
from appliance.vllm_program import find_program

MAX_TEXT = 2000
MAX_DUMP = 20_000
MAX_VALUE = 100
MAX_INSIDE = 200
NEVER = r"(?!)"
OVERRIDES = "vllm.extra-args.hf-overrides"
MISSPELT = 0.8  # so alike are a name and the one that was meant
SGLANG = (b"server_args=serverargs(", b"sglang.launch_server", b"/sglang/srt/", b"launch_server.py: ")
# What a message about the model says anyway.
OF_THE_MODEL = ("model", "model_tag", "model_path", "model.path", "served_model_name", "name", "tokenizer")
# What is the engine itself, and never the package that it lacks.
OF_THE_ENGINE = ("engine", *OF_THE_MODEL)
# Dumps that hold the defaults, too.
ALL_SETTINGS = re.compile(r"with config|server_?args\(|namespace\(", re.IGNORECASE)

UNKNOWN_PROFILE = {"engine": "vllm"}
FLAG = re.compile(r"(?<![\w-])--?([a-z][a-z0-9_-]{2,60})")
VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]{1,20}(?:_[A-Z0-9]{1,20}){1,8}\b")
# What is allowed instead: at least two names with commas between them.
CHOICES = re.compile(
    r"(?:choo{0,1}se from|one of|should be|must be|supported|available|allowed|valid|expected|registered|options)\b"
    r"[^\n\[({:'\"]{0,40}?[\[({: ]{1,4}"
    r"(?P<list>['\"]?[\w.+-]{1,60}['\"]?(?:(?:, | or |, or |,)['\"]?[\w.+-]{1,60}['\"]?){1,80})",
    re.IGNORECASE,
)
# What a setting must be, as something is larger: "pages (3) is larger than max_odd (2)", "3 is greater than max_odd 2".
COMPARED = re.compile(
    r"(?:\((?P<needed>\d{1,9})\) (?:is|are)|\b(?P<also>\d{1,9}) is) (?:larger|greater|more|longer) than"
    r" [`']?(?P<name>[a-z][a-z_]{3,40})[`']? (?:\(\d{1,9}\)|\d{1,9}\b)"
)
# A class, or a dotted path to one.
NAME_OF_ITS_OWN = re.compile(
    r"[A-Z][a-z0-9]{1,40}(?:[A-Z][A-Za-z0-9]{1,60})|[a-z]\w{1,60}(?:\.\w{1,60}){1,8}\.[A-Z]\w{1,60}"
)
CHOICE = re.compile(r"[\w.+-]{1,60}")
PRINTED = (
    re.compile(
        r"(?<!\S)--(?P<name>[a-z][\w-]{1,60})[= ](?P<value>'[^'\n]{0,500}'|\"[^\"\n]{0,500}\"|[^\s'\"-]\S{0,300})"
    ),
    re.compile(
        r"['\"]?\b(?P<name>[a-z]\w{1,60})['\"]?(?:=|: )(?P<value>'[^'\n]{0,500}'|\[[^\]\n]{0,300}\]|[\w./-]{1,300})"
    ),
    re.compile(r"\b(?P<name>[A-Z][A-Z0-9_]{2,60})=(?P<value>\S{1,300})"),
)


class Origin(NamedTuple):
    """`key` is a profile's, where `in_profile`; otherwise as it was printed. Of a setting that is a JSON object
    (`whole`), `inside` are the keys, and places in lists, that lead to the value within it."""

    key: str
    value: str
    in_profile: bool
    inside: tuple[str | int, ...] = ()
    whole: str = ""

    @property
    def name(self) -> str:
        """As engines say it: the last part, with underscores."""
        if self.inside:
            return self._names[-1]
        return self.key.removeprefix("vllm.extra-args.").removeprefix("vllm.environment.").replace("-", "_")

    @property
    def told(self) -> str:
        return f"{'.'.join(self._names)} in {self.key}" if self.inside else self.key

    @property
    def _names(self) -> list[str]:
        return [key for key in self.inside if isinstance(key, str)]

    def patch(self, value: int | str | None) -> dict[str, Any]:
        """What sets it to `value`, or to its default. Of an object only what is inside changes, or goes; one that
        replaces an object of the model's goes as a whole: it would lack what was taken out."""
        if not self.inside:
            return {self.key: value}
        replaces = value is None and self.key == OVERRIDES and all(isinstance(key, str) for key in self.inside)
        place = self.inside[:1] if replaces else self.inside
        changed = _changed(json.loads(self.whole), place, value)
        return {self.key: json.dumps(changed) if changed else None}


class LaunchSettings:
    """What a launch was set to: by its profile, where that is known, else as its log prints it. `model` is the folder
    of its model, where that is known."""

    def __init__(self, log: Searchable, profile: Mapping[str, Any] | None, model: Path | None = None) -> None:
        self._log = log
        self._profile = profile
        self._model = model

    @functools.cached_property
    def groups(self) -> Groups:
        """The few that fixes compute with."""
        return own_settings(self._log, self._profile)

    def origin_of(self, message: str, captured: Mapping[str, str] | None = None) -> Origin | None:
        """The setting that a message speaks of. One whose name it says counts before one whose value it quotes, and
        before both the one whose value the engine printed under its name (`captured`)."""
        said = without_dumps(message[:MAX_TEXT])
        origins = list(self._origins())
        named = {name.replace("-", "_") for pattern in (FLAG, VARIABLE, NAME) for name in pattern.findall(said)}
        quoted = {value.strip() for pattern in QUOTED for value in pattern.findall(said)}
        for origin in origins:
            if captured and captured.get(origin.name) == origin.value:
                return origin
        for origin in origins:
            if origin.name in named and (origin.in_profile or origin.value in quoted or len(named) == 1):
                return next((o for o in origins if o.inside and o.key == origin.key and o.value in quoted), origin)
        if (spoken := self.spoken_of(message)) is not None:
            return spoken
        for origin in origins:
            if origin.value in quoted and is_distinct(origin.value):
                return origin
        return None

    def spoken_of(self, message: str) -> Origin | None:
        """The setting whose name a message says in words, with its value, or whose value is a name of its own."""
        said = without_dumps(message[:MAX_TEXT])
        return next((origin for origin in self._origins() if _is_spoken_of(origin, said)), None)

    def among(self, names: Iterable[str], message: str) -> Origin | None:
        """Of these settings the one whose value stands in the message, as a word of its own."""
        said = without_dumps(message[:MAX_TEXT])
        wanted = frozenset(names)
        mine = (o for o in self._origins() if o.in_profile and o.name in wanted and is_distinct(o.value))
        return next((o for o in mine if re.search(rf"(?<![\w./-]){re.escape(o.value)}(?![\w/-])", said)), None)

    def importing(self, module: str, name: str = "") -> Origin | None:
        """The setting that names something of this module to be imported: `package.module.Class`, `module:name`. It may
        be one that the engine printed and the profile does not have: a site's wrapper adds its own."""
        named = re.compile(rf"(?<![\w.]){re.escape(module)}[.:]{re.escape(name) if name else r'[A-Za-z_]'}")
        given = (*self._origins(), *_printed(self._log, given=True))
        return next((origin for origin in given if named.search(origin.value[:MAX_DUMP])), None)

    def asking_for(self, package: str) -> Origin | None:
        """The setting whose value is the name of this package, or a shorter form of it: a format, a backend."""
        top = package.partition(".")[0].lower()
        settings = (origin for origin in self._origins() if origin.name not in OF_THE_ENGINE)
        return next((origin for origin in settings if _is_short_for(origin.value.replace("-", "_").lower(), top)), None)

    def deciding(self, names: Iterable[str]) -> Origin | None:
        """Of the settings with these names, the first that the profile gives."""
        if self._profile is None or not (names := tuple(names)):
            return None
        given = {origin.name: origin for origin in reversed(list(self._origins())) if origin.in_profile}
        return next((given[name] for name in names if name in given and name not in OF_THE_MODEL), None)

    def overriding(self, message: str) -> Origin | None:
        """What replaces a value of the model's config.json, if the message shows its number or has its name, also at
        the end of a longer one: `org_vocab_size`."""
        said = without_dumps(message[:MAX_TEXT])
        inside = (origin for origin in self._origins() if origin.key == OVERRIDES and origin.inside)
        return next((origin for origin in inside if _is_overriding(origin, said)), None)

    def _origins(self) -> Iterator[Origin]:
        settings = _of_profile(self._profile) if self._profile is not None else _printed(self._log)
        return (origin for origin in settings if not is_secret_name(origin.name) and not holds_secret(origin.value))

    def model_value_of(self, message: str) -> ModelValue | None:
        """What a message speaks of that stands in the model's files."""
        return model_value_in(without_dumps(message[:MAX_TEXT]), self._model) if self._model is not None else None

    @functools.cached_property
    def damaged_file(self) -> CheckpointError | None:
        """What is wrong with the model's JSON files, where its folder is known."""
        return damaged_file_in(self._model) if self._model is not None else None

    @functools.cached_property
    def damaged_weights(self) -> CheckpointError | None:
        return damaged_weights_in(self._model) if self._model is not None else None

    @functools.cached_property
    def changed_files(self) -> tuple[str, ...]:
        """The model's files that are not as they were when it was imported, where that is known."""
        return changed_since_import(self._model) if self._model is not None else ()

    def restored(self, fix: Fix, *files: str) -> Fix:
        """The fix of a model's files, with a command that brings them back, and whatever else has changed since its
        import; without one where it is not known from where."""
        if self._model is None or not files or fix.command:
            return fix
        wanted = tuple(dict.fromkeys((*files, *self.changed_files)))
        command = restoring_command(self._model, wanted)
        recoded = recoding_command(self._model / files[0]) if command is None else None
        return msgspec.structs.replace(fix, command=command or recoded)

    @functools.cached_property
    def wrong_sizes(self) -> tuple[Difference, ...]:
        """What the model's config.json gives otherwise than its weights have it, for a launch of vLLM's."""
        return differences(self._model) if self._model is not None and self._takes_options else ()

    def right_sizes(self) -> Fix:
        """The file is corrected, and not overridden: what is no size is refused before that, and preflight reads the
        file, too."""
        assert self._model is not None
        keys = " and ".join(key for key, _, _ in self.wrong_sizes)
        right = ", ".join(f"{key} {right}" for key, _, right in self.wrong_sizes)
        return Fix(
            text=f"Correct {keys} in the model's config.json: the weights have {right}.",
            command=correcting_command(self._model, self.wrong_sizes),
        )

    @property
    def _takes_options(self) -> bool:
        return self._profile is not None and engine_named(self._profile.get("engine")).takes_options

    def speaks_of(self, message: str) -> bool:
        """Whether a message is about a setting, or about a value in the model's files."""
        return self.origin_of(message) is not None or self.model_value_of(message) is not None

    def fix_of(self, origin: Origin, message: str) -> Fix:
        """What the message needs it to be, the nearest value that it allows, or else the default."""
        nearest = needed_by(message, origin.name) or nearest_choice(origin.value, message)
        if not origin.in_profile:
            change = f"Change it to {nearest}." if nearest else "Correct it, or remove it to use the default."
            return Fix(
                text=f"This launch set {origin.key} to {origin.value[:MAX_VALUE]}. {change}",
                command=self.command_with(f"--{origin.key}", nearest),
            )
        text = (
            f"Set {origin.told} to {nearest}."
            if nearest
            else f"Correct {origin.told}, or remove it to use its default."
        )
        patch = origin.patch(nearest)
        return Fix(text=text, patch=patch if self.accepts(patch) else None)

    def command_with(self, name: str, value: int | str | None) -> str | None:
        """The command of a launch that is not Ingot's, with a flag (`--name`) or variable set to `value` or left out; a
        variable that cannot be left out of it is to be unset before. None where the flag does not show. A launch of
        Ingot's is changed in its profile; only what a site's wrapper around vLLM adds is left out there."""
        if self.of_a_profile:
            return self._without_in_wrapper(name) if value is None else None
        if self.of_sglang:
            return None
        if name.startswith("-"):
            return changed_command(self._log, name.lstrip("-").replace("-", "_"), value)
        return self.command_without([name]) if value is None and is_variable(name) else None

    def command_without(self, variables: Iterable[str]) -> str | None:
        """The same without these; what unsets them, where the command is not known."""
        names = list(variables)
        if self.of_a_profile:
            return next(filter(None, map(self._without_in_wrapper, names)), None)
        if self.of_sglang:
            return None
        return command_without_variables(self._log, names) or f"unset {' '.join(names)}"

    def command_respelt(self, name: str, right: str) -> str | None:
        """What writes a flag under its right name in a site's wrapper."""
        return self.wrapper.with_flag_named(name, right) if self.wrapper is not None else None

    def command_without_path(self, path: str) -> str | None:
        """What takes the flag that names this path out of a site's wrapper."""
        flag = self.wrapper.flag_with(path) if self.wrapper is not None else None
        return self.wrapper.without_flag(flag) if self.wrapper is not None and flag is not None else None

    def _without_in_wrapper(self, name: str) -> str | None:
        if self.wrapper is None:
            return None
        return self.wrapper.without_flag(name) if name.startswith("-") else self.wrapper.without_variable(name)

    @functools.cached_property
    def wrapper(self) -> SiteWrapper | None:
        """The script that starts vLLM here, for a launch of vLLM's that is Ingot's."""
        if not self._takes_options:
            return None
        program = find_program(os.environ)
        return read_wrapper(program.path) if program is not None else None

    def command_also_with(self, values: Mapping[str, Any]) -> str | None:
        """The same with arguments (`name_of_one`) that may not have been given."""
        return None if self.of_a_profile or self.of_sglang else extended_command(self._log, values)

    def given_path(self, path: str) -> Origin | None:
        """The argument of a launch that is not Ingot's that gave this path, other than its model's."""
        if self.of_a_profile:
            return None
        given = (origin for origin in _printed(self._log, given=True) if origin.name not in OF_THE_MODEL[:-1])
        return next((origin for origin in given if origin.value == path), None)

    @property
    def hub_model(self) -> str | None:
        """The name on the hub of what a launch that is not Ingot's asked for."""
        return None if self.of_a_profile else model_on_the_hub(self._log)

    def changed(self, names: Iterable[str]) -> list[Origin]:
        """Those of the settings that the launch was given, other than at their defaults, as far as that shows."""
        wanted = {name.lstrip("-").replace("-", "_") for name in names}
        found = _of_profile(self._profile) if self._profile is not None else _printed(self._log, given=True)
        return list({origin.name: origin for origin in found if origin.name in wanted}.values())

    @property
    def of_a_profile(self) -> bool:
        return self._profile is not None

    @functools.cached_property
    def of_sglang(self) -> bool:
        """Whether SGLang wrote the log: its settings are not those of a profile."""
        return self._profile is None and bool(self._log.present(SGLANG))

    def without_idle(self, fix: Fix) -> Fix:
        """Drops the removal of settings that the profile does not have: it would change nothing."""
        if self._profile is None or not fix.patch:
            return fix
        given = [f"{origin.key}." for origin in _of_profile(self._profile)]
        patch = {
            key: value
            for key, value in fix.patch.items()
            if value is not None or any(one.startswith(f"{key}.") for one in given)
        }
        return msgspec.structs.replace(fix, patch=patch or None)

    def accepts(self, patch: Mapping[str, Any]) -> bool:
        """Whether the profile stays valid; where it is not known, whether any profile of vLLM may say so."""
        return _stays_valid(self._profile if self._profile is not None else UNKNOWN_PROFILE, patch)


def _is_short_for(value: str, package: str) -> bool:
    """As runai_streamer is for runai_model_streamer."""
    words, whole = value.split("_"), package.split("_")
    return value == package or (len(words) > 1 and (words[0], words[-1]) == (whole[0], whole[-1]))


def _is_overriding(origin: Origin, said: str) -> bool:
    number = origin.value if origin.value.isdecimal() else NEVER
    return re.search(rf"(?<![\w.]){number}(?![\w.])|\b(?:\w{{1,30}}_)?{re.escape(origin.name)}\b", said) is not None


def _is_spoken_of(origin: Origin, said: str) -> bool:
    value = re.escape(origin.value[:MAX_VALUE])
    if not value or origin.name in OF_THE_MODEL or not re.search(rf"(?<![\w./-]){value}(?![\w/-])", said):
        return False
    name = origin.name.replace("_", " ")
    if f"{name} " in said.lower() or NAME_OF_ITS_OWN.fullmatch(origin.value) is not None:
        return True
    return bool(origin.inside) and is_after_noun(origin.name, origin.value[:MAX_VALUE], said)


def _stays_valid(profile: Mapping[str, Any], patch: Mapping[str, Any]) -> bool:
    from appliance.profile import document as documents  # late: most logs are read without a profile

    before = documents.check(profile)
    return all(problem in before for problem in documents.check(documents.apply_patch(profile, patch)))


def needed_by(message: str, name: str) -> int | None:
    """The number that a message has as larger than the setting of this name (`name_of_one`)."""
    compared = COMPARED.search(message[:MAX_TEXT])
    return int(compared["needed"] or compared["also"]) if compared is not None and compared["name"] == name else None


def nearest_choice(value: str, message: str) -> str | None:
    """The value that a message allows and that this one misspells; of numbers the next that is not smaller."""
    found = CHOICES.search(message[:MAX_TEXT])
    choices = [choice for choice in CHOICE.findall(found["list"]) if choice != value] if found is not None else []
    if value.isdecimal() and all(choice.isdecimal() for choice in choices):
        return min((choice for choice in choices if int(choice) >= int(value)), key=int, default=None)
    near = difflib.get_close_matches(value, choices, n=1, cutoff=MISSPELT)
    return near[0] if near else None


def _of_profile(document: Mapping[str, Any], prefix: str = "") -> Iterator[Origin]:
    for key, value in document.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and prefix != "vllm.extra-args.":
            yield from _of_profile(value, f"{dotted}.")
        elif isinstance(value, Mapping):
            yield from (Origin(dotted, str(inner), True) for inner in (dotted, *value.values()))
        elif value is not None:
            yield Origin(dotted, str(value), True)
            yield from _inside(dotted, str(value))


def _inside(key: str, text: str) -> Iterator[Origin]:
    """The values within a setting that is a JSON object."""
    if text[:1] != "{" or len(text) > MAX_DUMP:
        return
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return
    yield from (Origin(key, value, True, path, text) for path, value in islice(_scalars(whole), MAX_INSIDE))


def _scalars(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, (Mapping, list)):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _scalars(inner, (*path, key))
    elif value is not None:
        yield path, str(value)


def _changed(whole: Any, path: tuple[str | int, ...], value: int | str | None) -> Any:
    """Without the value at `path`, or with another one there, and without what that leaves empty."""
    at, *further = path
    new = _changed(whole[at], tuple(further), value) or None if further else value
    kept = whole.items() if isinstance(whole, Mapping) else enumerate(whole)
    changed = [(key, new if key == at else held) for key, held in kept if key != at or new is not None]
    return dict(changed) if isinstance(whole, Mapping) else [held for _, held in changed]


def _printed(log: Searchable, *, given: bool = False) -> Iterator[Origin]:
    """`given`: only what the launch was given, not what the engine made of it."""
    for text in dumps_in(log):
        if given and ALL_SETTINGS.search(text):
            continue
        for pattern in PRINTED:
            for found in pattern.finditer(text[:MAX_DUMP]):
                yield Origin(found["name"], found["value"].strip("'\""), False)
