"""Saves the changes of `ingot check --fix` as a revision: the entry point by which the checks, which know no database,
reach the one of the profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from appliance.home import Home
from console.db.failures import DATABASE_ERRORS, explain
from console.db.schema import SchemaError
from console.profiles.errors import ProfileRefusal
from console.profiles.terminal_work import Work, working


class NotSaved(ValueError):
    """The reason, and what to do."""


def save_fixed(home: Home, *, name: str, revision: str, document: Mapping[str, Any], note: str) -> str:
    """Save on top of `revision`. If the profile has a later one, save nothing, so that nobody's work is undone."""

    async def save(work: Work) -> str:
        return await work.save_fixed(name, revision, document, note)

    try:
        return working(save, creates=True)
    except ProfileRefusal as error:
        raise NotSaved(f"{error.message} {error.remedy}") from error
    except SchemaError as error:
        raise NotSaved(str(error)) from error
    except DATABASE_ERRORS as error:
        failure = explain(error, home.database)
        if failure is None:
            raise
        raise NotSaved(f"{failure.message} {failure.remedy}") from error
