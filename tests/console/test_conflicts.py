"""Each 409 says what is in the way: a code for programs and pages, and a title of its own for people."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import console
from console.backups.errors import BackupError
from console.conflicts import CONFLICTS, Conflict
from console.profiles import errors as profile_errors
from console.refusals import TITLES, Refusal
from tests.console.backup_states import back_up

JSON = {"Accept": "application/json"}
ROOT = Path(console.__file__).parent


def constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def raised() -> set[str]:
    """The codes of all conflicts that the console's source raises."""
    codes = set()
    calls = [
        (node.func.id, node)
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    for name, call in calls:
        is_409 = any(keyword.arg == "status" and constant(keyword.value) == 409 for keyword in call.keywords)
        if name == "Conflict" or (name == "BackupError" and is_409):
            codes.add(constant(call.args[0]))
        assert not (name == "Refusal" and constant(call.args[0]) == 409), ast.unparse(call)
    return {code for code in codes if isinstance(code, str)}


def test_each_conflict_has_a_title_of_its_own():
    assert len(set(CONFLICTS.values())) == len(CONFLICTS)
    assert not set(CONFLICTS.values()) & set(TITLES.values())
    assert 409 not in TITLES


def test_each_code_is_a_row_and_each_row_is_used():
    from console.backups.jobs import RUNNING

    of_profiles = {"name-taken", "newer-revision", "profile-active", "activation-running", "restore-running"}
    of_backups = {code for _, code in RUNNING.values()}
    assert raised() | of_profiles | of_backups == set(CONFLICTS)


def test_a_refusal_has_the_title_of_its_status_and_a_conflict_that_of_its_code():
    assert Refusal(404, "x").title == TITLES[404]
    assert Refusal(418, "x").title == "Refused"
    for code, title in CONFLICTS.items():
        conflict = Conflict(code, "x")
        assert (conflict.status, conflict.code, conflict.title) == (409, code, title)


def test_a_code_without_a_title_is_noticed_where_it_is_raised():
    with pytest.raises(AssertionError):
        Conflict("no-such-code", "x")


def test_profile_refusals_say_which_conflict_they_are():
    assert profile_errors.NameTaken("chat").code == "name-taken"
    assert profile_errors.UnderWay("chat r1", code="restore-running").code == "restore-running"
    assert profile_errors.Stale.code == "newer-revision"
    assert profile_errors.InUse.code == "profile-active"


async def test_a_running_restore_and_a_running_activation_differ(client, app, console):
    """Both keep a second restore from starting."""
    name = back_up(console.home).name
    activator = app.dependencies["activator"].dependency()
    for code in ("activation-running", "restore-running"):
        with activator.alone("chat r1", code):
            answer = await client.post(f"/backups/{name}/restore", headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (409, code)


async def test_an_engine_that_is_not_ready(client):
    answer = await client.post("/benchmarks", headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (409, "engine-not-ready")


async def test_a_toast_names_the_conflict(client):
    answer = await client.post("/benchmarks", headers={"HX-Request": "true"})
    assert answer.status_code == 409
    assert 'data-conflict="engine-not-ready"' in answer.text


def test_an_error_of_a_backup_is_a_refusal():
    """With the title of its conflict, or else of its status."""
    busy = BackupError("state-busy", "x", "y", status=409)
    full = BackupError("disk-full", "x", "y", status=507)
    assert isinstance(busy, Refusal)
    assert (busy.title, full.title) == (CONFLICTS["state-busy"], TITLES[507])


async def test_a_program_is_told_the_code_of_a_backups_error(client):
    answer = await client.post("/backups/no-such.tar.gz/check", headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
