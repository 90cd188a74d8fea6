"""How a person names a launch in a terminal: by its id, by the number that the console shows, or as the latest."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import LaunchFolder

LATEST = "latest"
LONGEST_NUMBER = 18
"""Digits; SQLite's integers have room for them."""


def find_launch(catalogue: Catalogue, given: str) -> LaunchFolder | None:
    if given == LATEST:
        current = catalogue.current()
        return catalogue.find(current) if current else None
    return catalogue.find(_id_of_number(catalogue.home, given) or given)


def launch_numbers(home: Home) -> dict[str, int]:
    """The numbers by launch id, of the launches that the console has seen."""
    return dict(_query(home, "SELECT launch_id, number FROM launches"))


def _id_of_number(home: Home, given: str) -> str | None:
    if not (given.isascii() and given.isdecimal() and len(given) <= LONGEST_NUMBER):
        return None
    rows = _query(home, "SELECT launch_id FROM launches WHERE number = ?", int(given))
    return rows[0][0] if rows else None


def _query(home: Home, statement: str, *values: int) -> list[Any]:
    """No rows where the database cannot say: the launches are there without it."""
    try:
        with closing(sqlite3.connect(f"{home.database.as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute(statement, values).fetchall()
    except sqlite3.Error:
        return []
