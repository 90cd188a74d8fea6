"""Imports, one after another in a thread of their own: asked for, waiting, running, ended. Every page sees the same,
and the last ones are kept in `imports.json`, so that a console that was killed can say what it left undone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from appliance.bundle.errors import BundleError, StoppedError
from appliance.home import Home, write_atomically
from console.errors import Refusal
from console.models.in_thread import in_thread
from console.models.leftovers import sweep
from console.models.progress import Progress
from console.models.troubles import Place, Trouble, trouble

log = logging.getLogger(__name__)

KEPT = 20
WAITING = 16
NEWS_S = 24 * 3600.0
"""So long a page tells of an import that ended well or was called off; of others until somebody takes them off."""
TELL_EVERY_S = 0.5
END_WITHIN_S = 10.0

OPEN = frozenset({"waiting", "running"})
TROUBLED = frozenset({"failed", "interrupted"})


class Order(Protocol):
    """What is to be imported: from `path`, which the media folder has as `source`. `run` works in a thread, and ends
    soon after `stop` is set, with StoppedError."""

    @property
    def title(self) -> str: ...
    @property
    def verb(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def source(self) -> str: ...
    @property
    def held(self) -> tuple[str, ...]: ...
    @property
    def models(self) -> tuple[str, ...]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def signed_by(self) -> str: ...

    def run(self, report: Callable[[int, int], None], stop: threading.Event) -> None: ...


class Import(msgspec.Struct, kw_only=True):
    """`state`: waiting, running, done, failed, cancelled, interrupted. `verb` is import or
    comparison. `models` are the names that they get here, `held` those that they have on the stick, which has the file
    as `source`."""

    id: str
    verb: str
    title: str
    source: str
    held: tuple[str, ...]
    models: tuple[str, ...]
    bytes: int
    signed_by: str
    author: str
    asked: float
    state: str = "waiting"
    started: float = 0.0
    ended: float = 0.0
    trouble: Trouble | None = None

    @property
    def is_open(self) -> bool:
        return self.state in OPEN


class Imports:
    """`rows` newest first; `progress` of the one that runs; `changed` is called in the event loop whenever a page
    should show something else."""

    def __init__(self, home: Home, place: Place) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.progress: Progress | None = None
        self.place = place
        self._file = home.root / "imports.json"
        self._orders: dict[str, Order] = {}
        self._stop = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self.rows = self._read()
        sweep(place.models)

    @property
    def waiting(self) -> list[Import]:
        """In the order in which they will run."""
        return [row for row in reversed(self.rows) if row.state == "waiting"]

    @property
    def running(self) -> Import | None:
        return next((row for row in self.rows if row.state == "running"), None)

    @property
    def told(self) -> list[Import]:
        """What has ended, as long as that is news."""
        late = time.time() - NEWS_S
        return [row for row in self.rows if not row.is_open and (row.state in TROUBLED or row.ended > late)]

    @property
    def coming(self) -> dict[str, Import]:
        """Names of models that are on their way."""
        return {name: row for row in self.rows if row.is_open for name in row.models}

    @property
    def reserved(self) -> int:
        """Bytes that imports asked for before will still write."""
        written = self.progress.share * self.running.bytes if self.progress and self.running else 0
        return max(0, int(sum(row.bytes for row in self.rows if row.is_open) - written))

    def ask(self, order: Order, author: str) -> Import:
        """Put an import into the queue; it begins at once where nothing else runs."""
        if len(self.waiting) >= WAITING:
            raise Refusal(409, f"{WAITING} imports are waiting already.", "Wait until some are done.")
        taken = next((name for name in order.models if name in self.coming), None)
        if taken is not None:
            raise Refusal(409, f"{taken} is being imported already.", "Look at its progress on the Models page.")
        row = Import(
            id=secrets.token_hex(4),
            verb=order.verb,
            title=order.title,
            source=order.source,
            held=order.held,
            models=order.models,
            bytes=order.bytes,
            signed_by=order.signed_by,
            author=author,
            asked=time.time(),
        )
        self._orders[row.id] = order
        before = [old for old in self.rows if old.is_open or old.models != row.models]  # what came of it last is over
        self.rows = [row, *before]
        self._keep()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return row

    def cancel(self, import_id: str) -> Import:
        row = self._find(import_id)
        if row.state == "waiting":
            self._end(row, "cancelled")
        elif row.state == "running" and self.progress is not None:
            self.progress.stopping = True
            self._stop.set()
            self.changed()
        else:
            raise Refusal(409, f"The {row.verb} of {row.title} has ended already.", "There is nothing left to cancel.")
        return row

    def forget(self, import_id: str) -> None:
        """Take an ended import off the page."""
        row = self._find(import_id)
        if row.is_open:
            raise Refusal(409, f"The {row.verb} of {row.title} is not over.", "Cancel it first.")
        self.rows.remove(row)
        self._keep()

    async def close(self) -> None:
        """End what runs, with nothing left behind; a stick that does not answer is not waited for."""
        for row in self.waiting:
            self._end(row, "interrupted")
        self._stop.set()
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=END_WITHIN_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while waiting := self.waiting:
            row = waiting[0]
            order = self._orders.pop(row.id)
            self._stop = threading.Event()
            self.progress = progress = Progress()
            row.state, row.started = "running", time.time()
            self._keep()
            telling = asyncio.create_task(self._tell())
            try:
                await self._carry_out(order, progress)
            except StoppedError:
                self._end(row, "cancelled" if progress.stopping else "interrupted")
            except (BundleError, OSError) as error:
                found = await in_thread(trouble, error, order.path, self.place, order.models, order.bytes)
                self._end(row, "failed", found)
            except Exception as error:  # whatever else a hostile file sets off ends this import, and not the others
                log.error("The import of %s broke off", row.title, exc_info=error)
                text = f"The import ended in a fault of the console's own: {type(error).__name__}."
                self._end(row, "failed", Trouble(text, "The console's output has the trace: please report it."))
            else:
                self._end(row, "done")
            finally:
                telling.cancel()
                self.progress = None
                self.changed()

    async def _carry_out(self, order: Order, progress: Progress) -> None:
        """Until it has ended; one that was called off is waited for only so long, since a dead stick may hold its
        thread for ever. Once it answers, that thread tidies up after itself."""
        working = asyncio.create_task(in_thread(order.run, progress.report, self._stop))
        try:
            while not working.done():
                await asyncio.wait({working}, timeout=TELL_EVERY_S)
                if self._stop.is_set() and progress.silent_s > END_WITHIN_S and not working.done():
                    raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            working.result()
        finally:
            working.cancel()

    async def _tell(self) -> None:
        while True:
            self.changed()
            await asyncio.sleep(TELL_EVERY_S)

    def _end(self, row: Import, state: str, found: Trouble | None = None) -> None:
        row.state, row.ended, row.trouble = state, time.time(), found
        self._orders.pop(row.id, None)
        self._keep()

    def _find(self, import_id: str) -> Import:
        row = next((row for row in self.rows if row.id == import_id), None)
        if row is None:
            raise Refusal(404, "That import is not listed any more.", "Somebody took it off the page.")
        return row

    def _keep(self) -> None:
        """Write the list down; a state folder that cannot be written stops no import."""
        over = [row for row in self.rows if not row.is_open][KEPT:]
        self.rows = [row for row in self.rows if row not in over]
        try:
            write_atomically(self._file, msgspec.json.format(msgspec.json.encode(self.rows)))
        except OSError as error:
            log.warning("%s could not be written: %s", self._file, error.strerror)
        self.changed()

    def _read(self) -> list[Import]:
        """As the console before this one left it: what it had not ended was cut off with it."""
        rows: list[Import] = []
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            rows = msgspec.json.decode(self._file.read_bytes(), type=list[Import])
        for row in rows:
            here = all((self.place.models / name).is_dir() for name in row.models)
            if row.state == "running" and row.verb == "import" and here:
                row.state, row.ended = "done", time.time()  # it had its name already when the console was ended
            elif row.is_open:
                row.state, row.ended = "interrupted", 0.0
        return rows
