"""Typed reading of a JSON object's keys: a value of the wrong type or size is an error that names it."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn, cast

from appliance.checkpoint.errors import CheckpointError


class Fields:
    """The keys of one object of one file; `prefix` is where the object stands in it.

    A key that is null counts as absent, as transformers writes it. `true` is not a number here.
    """

    def __init__(
        self, file: Path, given: dict[str, Any], prefix: str = "", implied: Collection[str] = frozenset()
    ) -> None:
        self.file = file
        self.given = given
        self._prefix = prefix
        self._implied = implied  # keys of `given` that the file lacks

    def inside(self, name: str) -> Fields:
        return Fields(self.file, self.mapping(name) or {}, f"{self._prefix}{name}.")

    def with_defaults(self, defaults: dict[str, Any], *, nullable: Collection[str] = ()) -> Fields:
        """The same object, with `defaults` for the keys that it lacks. A null under a `nullable` key stays."""
        lacking = {
            name: value
            for name, value in defaults.items()
            if self.given.get(name) is None and not (name in nullable and name in self.given)
        }
        return Fields(self.file, self.given | lacking, self._prefix, lacking.keys())

    def refuse(self, name: str, why: str, value: Any = None) -> NoReturn:
        field = self._prefix + name
        value = self.given.get(name) if value is None else value
        what = f"{field} is {_brief(value)}."
        if name in self._implied:
            what, value = f"{field} is not set, which means {_brief(value)}.", None
        raise CheckpointError(
            "config-invalid",
            f"{self.file.name}: {what} {why}",
            file=self.file,
            field=field,
            value=value,
            remedy=f"Copy the original {self.file.name}, or correct {field} in it.",
        )

    def unsupported(self, name: str, what: str, supported: str) -> NoReturn:
        """Of a valid choice that the native engine lacks, `what`: the file is right, and another engine may run it."""
        raise CheckpointError(
            "architecture-unsupported",
            f"The native engine does not support {what}.",
            file=self.file,
            field=self._prefix + name,
            value=self.given.get(name),
            evidence=(f"supported: {supported}",),
            remedy="Choose another model.",
        )

    def _absent(self, name: str) -> NoReturn:
        field = self._prefix + name
        raise CheckpointError(
            "config-invalid",
            f"{self.file.name} has no {field}, which this architecture needs.",
            file=self.file,
            field=field,
            remedy=f"Copy the original {self.file.name}, or add {field} to it.",
        )

    def integer_or_none(self, name: str, minimum: int, maximum: int, *, default: int | None) -> int | None:
        """As `integer`, except that an explicit null is None."""
        if name in self.given and self.given[name] is None:
            return None
        return self.integer(name, minimum, maximum, default=default)

    def integer(self, name: str, minimum: int, maximum: int, *, default: int | None = None) -> int:
        value = self.given.get(name)
        if value is None:
            return default if default is not None else self._absent(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            self.refuse(name, f"Must be a whole number from {minimum:,} to {maximum:,}.")
        return value

    def number(
        self,
        name: str,
        *,
        minimum: float | None = None,
        above: float | None = None,
        maximum: float,
        default: float | None = None,
    ) -> float:
        value = self.given.get(name)
        if value is None:
            return default if default is not None else self._absent(name)
        low = f"at least {minimum:g}" if minimum is not None else f"greater than {above:g}"
        good = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (not isinstance(value, float) or math.isfinite(value))
            and (minimum is None or value >= minimum)
            and (above is None or value > above)
            and value <= maximum
        )
        if not good:
            self.refuse(name, f"Must be a number {low} and at most {maximum:g}.")
        return float(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.given.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, "Must be true or false.")
        return value

    def text(self, name: str, *, default: str) -> str:
        value = self.given.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > 128 or not value.isprintable():
            self.refuse(name, "Must be a short text.")
        return value

    def token_ids(self, name: str, vocab_size: int) -> tuple[int | None, ...]:
        """The ids under a key that holds one id, a list of ids, null or nothing; never empty."""
        value = self.given.get(name)
        ids = value if isinstance(value, list) else [value]
        for token in ids:
            good = isinstance(token, int) and not isinstance(token, bool) and -1 <= token < vocab_size
            if token is not None and not good:
                self.refuse(name, f"Token ids go from 0 to {vocab_size - 1} (vocab_size - 1).")
        return tuple(token for token in ids if token != -1) or (None,)  # -1: old LLaMA configs for "none"

    def mapping(self, name: str) -> dict[str, Any] | None:
        value = self.given.get(name)
        if value is not None and not isinstance(value, dict):
            self.refuse(name, "Must be a JSON object.")
        return cast("dict[str, Any] | None", value)


def _brief(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
