"""Imports, one at a time in their own thread: waiting, running, ended. All pages see the same list. The last ones are
kept in `imports.json`, so that a console that was killed can report what it left unfinished."""

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
from console.conflicts import Conflict
from console.models.in_thread import in_thread
from console.models.leftovers import sweep
from console.models.progress import Progress
from console.models.troubles import Place, Trouble, trouble
from console.refusals import Refusal

log = logging.getLogger(__name__)

KEPT = 20
WAITING = 16
NEWS_S = 24 * 3600.0
"""How long the page shows an import that succeeded or was cancelled; others stay until dismissed."""
TELL_EVERY_S = 0.5
END_WITHIN_S = 10.0

OPEN = frozenset({"waiting", "running"})
TROUBLED = frozenset({"failed", "interrupted"})


class Order(Protocol):
    """What to import: from `path`, which is `source` in the media folder. `run` works in a thread, and raises
    StoppedError soon after `stop` is set."""

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
    comparison. `models` are the names that they get here, `held` those that they have on the drive, which has the file
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
    """`rows`, newest first; `progress` of the running one; `changed` is called in the event loop whenever pages need
    an update."""

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
        """Ended imports that the page still shows."""
        late = time.time() - NEWS_S
        return [row for row in self.rows if not row.is_open and (row.state in TROUBLED or row.ended > late)]

    @property
    def coming(self) -> dict[str, Import]:
        """Models waiting or being imported, by name."""
        return {name: row for row in self.rows if row.is_open for name in row.models}

    @property
    def reserved(self) -> int:
        """Bytes that waiting and running imports will still write."""
        written = self.progress.share * self.running.bytes if self.progress and self.running else 0
        return max(0, int(sum(row.bytes for row in self.rows if row.is_open) - written))

    def ask(self, order: Order, author: str) -> Import:
        """Queue an import; it starts at once if nothing else is running."""
        if len(self.waiting) >= WAITING:
            message = f"{WAITING} imports are already waiting."
            raise Conflict("import-queue-full", message, "Wait until some have finished.")
        taken = next((name for name in order.models if name in self.coming), None)
        if taken is not None:
            message = f"{taken} is already being imported."
            raise Conflict("already-importing", message, "The Models page shows its progress.")
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
        before = [
            old for old in self.rows if old.is_open or old.models != row.models
        ]  # replaces the last result for the same models
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
            message = f"The {row.verb} of {row.title} has already ended."
            raise Conflict("import-ended", message, "There is nothing left to cancel.")
        return row

    def forget(self, import_id: str) -> None:
        """Dismiss an ended import."""
        row = self._find(import_id)
        if row.is_open:
            raise Conflict("import-running", f"The {row.verb} of {row.title} is still running.", "Cancel it first.")
        self.rows.remove(row)
        self._keep()

    async def close(self) -> None:
        """Stop the running import and clean up; do not wait for a drive that does not respond."""
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
            except Exception as error:  # whatever else a hostile file causes ends this import, not the others
                log.error("The import of %s failed", row.title, exc_info=error)
                text = f"The import failed with an unexpected {type(error).__name__}."
                self._end(row, "failed", Trouble(text, "The console's output has the traceback. Please report it."))
            else:
                self._end(row, "done")
            finally:
                telling.cancel()
                self.progress = None
                self.changed()

    async def _carry_out(self, order: Order, progress: Progress) -> None:
        """Wait until it has ended. A cancelled import is waited for only briefly, since a dead drive may block its
        thread for ever; once the drive responds, the thread cleans up by itself."""
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
            raise Refusal(404, "That import is no longer listed.", "Somebody may have dismissed it.")
        return row

    def _keep(self) -> None:
        """Save the list; imports go on even if the state folder cannot be written."""
        over = [row for row in self.rows if not row.is_open][KEPT:]
        self.rows = [row for row in self.rows if row not in over]
        try:
            write_atomically(self._file, msgspec.json.format(msgspec.json.encode(self.rows)))
        except OSError as error:
            log.warning("%s could not be written: %s", self._file, error.strerror)
        self.changed()

    def _read(self) -> list[Import]:
        """As the previous console left it: imports that it had not ended were interrupted."""
        rows: list[Import] = []
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            rows = msgspec.json.decode(self._file.read_bytes(), type=list[Import])
        for row in rows:
            here = all((self.place.models / name).is_dir() for name in row.models)
            if row.state == "running" and row.verb == "import" and here:
                row.state, row.ended = "done", time.time()  # complete, although the console ended before saying so
            elif row.is_open:
                row.state, row.ended = "interrupted", 0.0
        return rows
