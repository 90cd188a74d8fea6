"""What a row of the settings says: the type of a value, its default, its limits."""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec


class Type(enum.StrEnum):
    """What a value may be. SIZE is a number of bytes: an integer, or text such as "2 GiB"."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    SIZE = "size"
    OPTIONS = "options"  # a mapping whose keys are an allow-list of its own: see vllm_options.py


class Required(enum.Enum):
    """The default of a setting that has none."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `none` says in words what null means; a row without it refuses null."""

    key: str
    type: Type
    default: Any
    group: str
    help: str
    allowed: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None  # an open lower end: the value must be greater than this
    pattern: str | None = None
    pattern_help: str = ""
    max_length: int = 512
    unit: str = ""
    none: str | None = None

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    def range_text(self) -> str:
        """ "at least 1 and at most 4,096", or "" where there is no range."""
        parts = []
        if self.above is not None:
            parts.append(f"greater than {self.above:g}")
        if self.minimum is not None:
            parts.append(f"at least {self.minimum:,.12g}")
        if self.maximum is not None:
            parts.append(f"at most {self.maximum:,.12g}")
        return " and ".join(parts)
