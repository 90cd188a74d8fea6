"""A launch as a person names it in a terminal: by its id, or by the number that the console shows."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import LaunchFolder

LONGEST_NUMBER = 18
"""Digits; SQLite's integers have room for them."""


def find_launch(catalogue: Catalogue, given: str) -> LaunchFolder | None:
    return catalogue.find(_id_of_number(catalogue.home, given) or given)


def _id_of_number(home: Home, given: str) -> str | None:
    """None where the database cannot say: the launches are there without it."""
    if not (given.isascii() and given.isdecimal() and len(given) <= LONGEST_NUMBER):
        return None
    try:
        with closing(sqlite3.connect(f"{home.database.as_uri()}?mode=ro", uri=True)) as connection:
            row = connection.execute("SELECT launch_id FROM launches WHERE number = ?", (int(given),)).fetchone()
    except sqlite3.Error:
        return None
    return row[0] if row else None
