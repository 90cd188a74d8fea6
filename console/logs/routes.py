"""The log's page, its lines by range, what matches a search, and the file itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromQuery, QueryParameter
from litestar.response import Stream, Template
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import LOG, LaunchFolder
from appliance.launches.states import under_way
from console.launches.numbers import launch_numbers
from console.launches.outcome import Outcome, outcome
from console.logs.classify import Level
from console.logs.index import LogIndex
from console.logs.line import Line
from console.logs.stream import CURRENT, position
from console.pages import fragment, page
from console.parts import PageRequest, Session, TheCatalogue, TheFollower, TheLogStore
from console.refusals import Refusal

FIRST_LINES = 300
"""Lines in the page itself, so that it works without scripts."""

LINES_LIMIT = 2000
BEFORE_LINE = 100
RECENT_LAUNCHES = 30
LINE_NUMBER = re.compile(r"[0-9]{1,10}")
BLOCK = 256 * 1024

LEVELS = {"": "All levels", "info": "Info and above", "warning": "Warnings and errors", "error": "Errors"}


class Matches(msgspec.Struct, frozen=True):
    """Numbers of the lines that match, of those after `after` and up to `scanned`; `count` of them in all, of which
    `numbers` may be only the first. Of a large log each answer covers a part: ask again from `scanned` on."""

    numbers: list[int]
    count: int
    scanned: int
    processes: list[str]


@get("/log")
async def log_page(
    request: PageRequest,
    session: Session,
    catalogue: TheCatalogue,
    follower: TheFollower,
    log_store: TheLogStore,
    launch: FromQuery[str] = CURRENT,
    line: Annotated[int, QueryParameter(ge=0, le=10**9)] = 0,
    q: FromQuery[str] = "",
    level: FromQuery[str] = "",
    process: FromQuery[str] = "",
) -> Template:
    current = await asyncio.to_thread(catalogue.current)
    shown = current if launch == CURRENT else launch
    if shown is None:
        return page(request, "logs/empty.html", title="Log")
    folder = _folder(catalogue, shown)
    index = log_store.index(shown)
    total = await asyncio.to_thread(index.refresh)
    asked = bool(q or level or process)
    rows = await asyncio.to_thread(_first_rows, index, line=line, q=q, level=_level(level), process=process)
    return page(
        request,
        "logs/log.html",
        title="Log",
        **await _about(session, catalogue, folder, runs=follower.view.runs, follows=launch == CURRENT),
        position=position(shown, total),
        total=total,
        rows=rows,
        line=line,
        query=q,
        level=level,
        levels=LEVELS,
        process=process,
        processes=index.processes,
        whole=not asked and len(rows) == total,
        unfinished=None if asked else await asyncio.to_thread(index.unfinished),
    )


@get("/log/head")
async def log_head(
    session: Session,
    catalogue: TheCatalogue,
    follower: TheFollower,
    launch: FromQuery[str] = CURRENT,
    follows: FromQuery[bool] = False,
) -> Template:
    """The page's head and its list of launches: the page asks for them when a launch's state has changed."""
    folder = _folder(catalogue, launch)
    about = await _about(session, catalogue, folder, runs=follower.view.runs, follows=follows)
    return fragment("logs/renewed.html", **about)


@get("/log/lines")
async def log_lines(
    catalogue: TheCatalogue,
    log_store: TheLogStore,
    launch: FromQuery[str] = CURRENT,
    first: Annotated[int, QueryParameter(name="from", ge=1, le=10**9)] = 1,
    count: Annotated[int, QueryParameter(ge=0, le=LINES_LIMIT)] = 200,
    numbers: Annotated[str, QueryParameter(max_length=20_000)] = "",
) -> list[Line]:
    """Lines by range, or those whose numbers are listed, separated by commas."""
    index = log_store.index(_folder(catalogue, launch).id)
    await asyncio.to_thread(index.refresh)
    if not numbers:
        return await asyncio.to_thread(index.lines, first, count)
    return await asyncio.to_thread(index.numbered, _line_numbers(numbers))


@get("/log/matches")
async def log_matches(
    catalogue: TheCatalogue,
    log_store: TheLogStore,
    launch: FromQuery[str] = CURRENT,
    q: Annotated[str, QueryParameter(max_length=1000)] = "",
    level: FromQuery[str] = "",
    process: FromQuery[str] = "",
    after: Annotated[int, QueryParameter(ge=0, le=10**9)] = 0,
) -> Matches:
    index = log_store.index(_folder(catalogue, launch).id)
    total = await asyncio.to_thread(index.refresh)
    found = await asyncio.to_thread(
        index.matching, query=q, level=_level(level), process=process, after=min(after, total)
    )
    return Matches(found.numbers, found.in_all, found.scanned, index.processes)


@get("/log/download")
async def log_download(catalogue: TheCatalogue, launch: FromQuery[str] = CURRENT) -> Stream:
    """The file as it is now, byte for byte."""
    folder = _folder(catalogue, launch)
    return download(folder.log, f"{folder.id}.log", "text/plain")


def download(path: Path, name: str, media_type: str) -> Stream:
    """A file that may grow meanwhile: sends its current content."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise Refusal(404, f"This launch has no {path.name}.", "Launches refused by preflight have none.") from None
    return Stream(
        _blocks(path, size),
        media_type=media_type,
        headers={"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{name}"'},
    )


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(BLOCK, size))):
            size -= len(block)
            yield block


def _folder(catalogue: Catalogue, launch: str) -> LaunchFolder:
    name = (catalogue.current() or "") if launch == CURRENT else launch
    folder = catalogue.find(name)
    if folder is None:
        raise Refusal(
            404,
            f"There is no launch {launch!r}.",
            "It may have been deleted. The Launches page lists all of them.",
            field="launch",
            value=launch,
        )
    return folder


def _level(text: str) -> Level:
    try:
        return Level[text.upper()] if text else Level.OTHER
    except KeyError:
        raise Refusal(
            422, f"level is {text!r}.", "Use one of: debug, info, warning, error.", field="level", value=text
        ) from None


def _line_numbers(text: str) -> list[int]:
    items = text.split(",")
    if len(items) > LINES_LIMIT:
        raise Refusal(422, f"{len(items):,} lines were requested; the limit is {LINES_LIMIT:,}.", field="numbers")
    for item in items:
        if not LINE_NUMBER.fullmatch(item):
            raise Refusal(
                422,
                f"{item[:20]!r} is not a line number.",
                "Use whole numbers separated by commas.",
                field="numbers",
                value=item[:80],
            )
    return [int(item) for item in items]


def _first_rows(index: LogIndex, *, line: int, q: str, level: Level, process: str) -> list[Line]:
    if q or level or process:
        found = index.matching(query=q, level=level, process=process)
        return index.numbered(found.numbers[-FIRST_LINES:])
    if line:
        return index.lines(line - BEFORE_LINE, FIRST_LINES)
    return index.lines(index.total - FIRST_LINES + 1, FIRST_LINES)


async def _about(
    session: AsyncSession, catalogue: Catalogue, folder: LaunchFolder, *, runs: bool, follows: bool
) -> dict[str, Any]:
    """What the page's head says, and the launches to choose from. `runs`: there is an engine."""
    numbers = await launch_numbers(session)
    before = (name for name in catalogue.ids() if name < folder.id)
    older = next((name for name in before if (catalogue.home.launch(name) / LOG).exists()), None)
    current = catalogue.current()
    return {
        "launch": folder.id,
        "number": numbers.get(folder.id),
        "record": folder.record(),
        "outcome": _outcome(folder, current, runs=runs),
        "has_log": folder.log.exists(),
        "follows": follows,
        "older": older,
        "older_number": numbers.get(older) if older else None,
        "launches": _choices(catalogue, numbers, folder.id, current, runs=runs),
    }


class LaunchChoice(NamedTuple):
    id: str
    name: str
    word: str


def _choices(
    catalogue: Catalogue, numbers: dict[str, int], shown: str, current: str | None, *, runs: bool
) -> list[LaunchChoice]:
    ids = catalogue.ids()[:RECENT_LAUNCHES]
    if shown not in ids:
        ids.append(shown)
    choices = []
    for launch_id in ids:
        folder = catalogue.find(launch_id)
        if folder is not None:
            record = folder.record()
            name = f"Launch {numbers[launch_id]}" if launch_id in numbers else launch_id
            what = f"{record.profile or 'unknown profile'} {record.revision}".rstrip()
            word = _outcome(folder, current, runs=runs).word
            choices.append(LaunchChoice(launch_id, f"{name} · {what} · {word}", word))
    return choices


def _outcome(folder: LaunchFolder, current: str | None, *, runs: bool) -> Outcome:
    record = folder.record()
    return outcome(record, runs=under_way(record, current, engine_runs=runs))


route_handlers: list[HTTPRouteHandler] = [log_page, log_head, log_lines, log_matches, log_download]
