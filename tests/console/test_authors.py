"""A page names people; what a command or the first start did, it does not credit to a person named Ingot."""

from __future__ import annotations

import re

import pytest

from console.access.keys import create_key
from console.access.setup import name_complaint
from console.authors import COMMAND_LINE, FIRST_START, by, done_by
from console.profiles.store import ProfileStore

CREDITED = re.compile(r"\bby ingot\b(?! \d)", re.I)


def test_people_are_named_and_the_machine_is_not():
    assert by("ann") == "by ann"
    assert by("") == ""
    assert done_by("Stopped", "") == "Stopped"
    assert len({by(COMMAND_LINE), by(FIRST_START), ""}) == 3
    assert not any(name in by(name).split() for name in (COMMAND_LINE, FIRST_START))


@pytest.mark.parametrize("name", [COMMAND_LINE, FIRST_START])
def test_no_account_may_have_a_name_that_stands_for_the_machine(name):
    assert name_complaint(name)


@pytest.mark.parametrize("author", [COMMAND_LINE, FIRST_START])
async def test_pages_say_where_a_revision_and_a_key_come_from(client, console, home, author):
    await ProfileStore(console.database).create({"name": "chat", "model": {"path": "T"}}, author=author)
    async with console.database.session() as session:
        await create_key(session, home, "cellar", author)
        await session.commit()
    for path in ("/profiles/chat", "/profiles/chat/revisions/1", "/access"):
        page = (await client.get(path)).text
        assert by(author) in page
        assert not CREDITED.search(page)
