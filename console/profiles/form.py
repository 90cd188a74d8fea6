"""The form of a profile, made of the rows of `appliance.profile.schema`: what is typed becomes a document, a document
becomes what is shown in the fields, and neither way loses anything."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.profile import document as documents
from appliance.profile import sizes, text
from appliance.profile.schema import BUNDLED_MODEL, BY_KEY, SETTINGS, Problem, ProfileError, Setting, Type
from appliance.profile.validation import MISSING
from console.profiles.words import label, limits, shown, shown_default
from kernels.catalogue import engines_of

TYPED = tuple(setting for setting in SETTINGS if setting.key != "schema")
"""The settings that have a field; the format's version has none."""

FOLDED = frozenset({"On request", "Backends", "Sampling defaults", "Several hosts", "vLLM"})
"""Groups that are closed until something in them is set or wrong."""

_WHOLE = re.compile(r"[-+]?[0-9]+")
_GROUPED = re.compile(r"[0-9]{1,3}([ ,_ ][0-9]{3})+")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class Choice:
    """`problem`: it is chosen, but `missing` or `invalid`."""

    value: str
    label: str
    problem: str = ""


BUNDLED_CHOICE = Choice(BUNDLED_MODEL, f"{BUNDLED_MODEL} (comes with Ingot)")
AUTO_DEVICE = Choice("", "auto (default)")


@dataclass(frozen=True)
class Field:
    """One setting as the page shows it; `value` is the text in the field, "" where the default holds."""

    setting: Setting
    value: str
    choices: tuple[Choice, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def key(self) -> str:
        return self.setting.key

    @property
    def id(self) -> str:
        return self.key.replace(".", "-")

    @property
    def label(self) -> str:
        return label(self.setting)

    @property
    def help(self) -> str:
        """The row's help and its range; what is between backticks is code."""
        between = limits(self.setting)
        return f"{self.setting.help} {between}." if between else self.setting.help

    @property
    def empty(self) -> str:
        """What an empty field means."""
        if self.is_short and self.setting.none is not None:
            return f"Empty: {self.setting.none.removeprefix('not set: ')}."
        return ""

    @property
    def is_short(self) -> bool:
        """Whether a narrow field holds any value of it."""
        return self.setting.type in (Type.INTEGER, Type.NUMBER, Type.SIZE)

    @property
    def short_key(self) -> str:
        """Without the section, where the group's title says it."""
        return self.key.rpartition(".")[2] if self.setting.group in FOLDED else self.key

    @property
    def placeholder(self) -> str:
        return "not set" if self.is_short and self.setting.default is None else shown_default(self.setting)

    @property
    def kind(self) -> str:
        if self.choices:
            return "choice"
        return "text" if self.setting.type is not Type.OPTIONS else "lines"

    @property
    def set(self) -> bool:
        return self.value != ""

    def in_words(self, value: Any) -> str:
        return "the CPU" if (self.key, value) == ("device", "cpu") else shown(self.setting, value)


@dataclass(frozen=True)
class Group:
    name: str
    fields: tuple[Field, ...]

    @property
    def id(self) -> str:
        return self.name.lower().replace(" ", "-")

    @property
    def folded(self) -> bool:
        return self.name in FOLDED and not any(item.set or item.problems for item in self.fields)

    @property
    def foldable(self) -> bool:
        return self.name in FOLDED

    @property
    def empty(self) -> str:
        """What an empty field means, where it means the same for all of several."""
        first, *others = {item.empty for item in self.fields}
        return "" if others or len(self.fields) < 2 else first

    @property
    def count(self) -> int:
        return sum(item.set for item in self.fields)


@dataclass(frozen=True)
class Draft:
    """What is in a form now, exactly as it was typed. `view` is `fields` or `yaml`; `base` is the revision that it
    began from (0: a new profile)."""

    values: Mapping[str, str] = field(default_factory=dict)
    yaml: str = ""
    view: str = "fields"
    base: int = 0
    note: str = ""

    @classmethod
    def of(cls, document: Mapping[str, Any], *, base: int, note: str = "", view: str = "fields") -> Draft:
        return cls(to_values(document), documents.write(document), view, base, note)

    @classmethod
    def sent(cls, data: Mapping[str, str]) -> Draft:
        """From the fields of a form as the browser sends them."""
        base = data.get("base", "")
        return cls(
            values={setting.key: data.get(setting.key, "") for setting in TYPED},
            yaml=data.get("yaml", "").replace("\r\n", "\n"),
            view="yaml" if data.get("view") == "yaml" else "fields",
            base=int(base) if base.isdecimal() and len(base) < 10 else 0,
            note=data.get("note", ""),
        )

    def document(self) -> dict[str, Any]:
        """Raises ProfileError where the YAML cannot be read; what a readable document says is judged elsewhere."""
        if self.view == "yaml":
            return documents.parse(self.yaml)
        return from_values(self.values)

    def seen_as(self, view: str) -> Draft | None:
        """The same document in the other view; None where the fields could not show all that the YAML says."""
        if view == self.view:
            return self
        document = self.document()
        if view == "fields" and documents.diff(document, from_values(to_values(document))):
            return None
        shown = document if view == "fields" else _without_version(document)
        return Draft(to_values(document), documents.write(shown), view, self.base, self.note)


def groups(
    values: Mapping[str, str], problems: Iterable[Problem], models: Iterable[str], devices: Iterable[Choice] = ()
) -> list[Group]:
    """Every field, in the order of the rows; a problem goes to the field that it is about. `models` and `devices` are
    what there is to choose from here."""
    by_key: dict[str, list[Problem]] = {}
    for problem in problems:
        if (key := _row_of(problem.field)) is not None:
            by_key.setdefault(key, []).append(problem)
    there = {
        "model.path": [BUNDLED_CHOICE, *(Choice(path, path) for path in models)],
        "device": [AUTO_DEVICE, *devices],
    }
    made: dict[str, list[Field]] = {}
    for setting in TYPED:
        value = values.get(setting.key, "")
        known = there[setting.key] if setting.key in there else _choices(setting)
        choices = _with_present(setting, value, known) if known else ()
        made.setdefault(setting.group, []).append(Field(setting, value, choices, tuple(by_key.get(setting.key, ()))))
    return [Group(name, tuple(fields)) for name, fields in made.items()]


def elsewhere(problems: Iterable[Problem]) -> list[Problem]:
    """Problems that no field of the form is about: an unknown key, a text that cannot be read."""
    return [problem for problem in problems if _row_of(problem.field) is None]


def to_values(document: Mapping[str, Any]) -> dict[str, str]:
    """The text of each field for a document."""
    values = {}
    for setting in TYPED:
        given = documents.get(document, setting.key)
        by_choice = setting.allowed or setting.type is Type.BOOLEAN or setting.key == "device"
        absent = given is MISSING or given is None or (by_choice and given == setting.default)
        values[setting.key] = "" if absent else _written(setting, given)
    return values


def from_values(values: Mapping[str, str]) -> dict[str, Any]:
    """The document that the fields say. Text that is not of its setting's type stays text, for `check` to refuse."""
    patch = {}
    for setting in TYPED:
        typed = values.get(setting.key, "").strip()
        if typed:
            patch[setting.key] = _typed(setting, typed)
    return documents.apply_patch({"schema": 1}, patch)


def _written(setting: Setting, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | list):
        return documents.write(value).strip() if value else ""  # type: ignore[arg-type]
    if setting.type is Type.SIZE and isinstance(value, int):
        return str(sizes.format_size(value))
    return str(value)


def _typed(setting: Setting, typed: str) -> Any:
    if setting.type is Type.BOOLEAN:
        return {"true": True, "false": False}.get(typed, typed)
    if setting.type in (Type.INTEGER, Type.SIZE):
        bare = re.sub(r"[ ,_ ]", "", typed) if _GROUPED.fullmatch(typed) else typed
        return int(bare) if _WHOLE.fullmatch(bare) and len(bare) <= 19 else typed
    if setting.type is Type.NUMBER:
        if _WHOLE.fullmatch(typed) and len(typed) <= 19:
            return int(typed)
        return float(typed) if _NUMBER.fullmatch(typed) and len(typed) <= 40 else typed
    if setting.type is Type.OPTIONS:
        try:
            return text.read(typed)
        except ProfileError:
            return typed
    return typed


def _choices(setting: Setting) -> list[Choice]:
    """The default is chosen by leaving the field empty, so that a later version's better default is taken over."""
    if setting.type is not Type.BOOLEAN and not setting.allowed:
        return []
    return [
        Choice("", f"{shown(setting, allowed)} (default)")
        if allowed == setting.default
        else Choice(_written(setting, allowed), shown(None, allowed) + _whose(setting, allowed))
        for allowed in setting.allowed or (True, False)
    ]


def _whose(setting: Setting, allowed: Any) -> str:
    """Said of a backend that only one of the engines has."""
    section, _, name = setting.key.rpartition(".")
    engines = engines_of(name, allowed) if section == "backends" else ()
    return f" (only {engines[0]})" if len(engines) == 1 else ""


def _with_present(setting: Setting, value: str, known: list[Choice]) -> tuple[Choice, ...]:
    """The choices, including the current value even if it is not valid."""
    if value in {choice.value for choice in known}:
        return tuple(known)
    if not value:
        return (Choice("", "Choose one"), *known)
    problem = "invalid" if setting.allowed else "missing"
    return (*known, Choice(value, f"{value} ({problem})", problem))


def _row_of(name: str) -> str | None:
    """The setting that a problem's field belongs to: `vllm.extra-args.host` -> `vllm.extra-args`."""
    while name and name not in BY_KEY:
        name = name.rpartition(".")[0]
    return name if name and name != "schema" else None


def _without_version(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "schema"}
