"""The Backups page: create, download, upload, check, restore and delete."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, URLEncodedBody
from litestar.response import File, Template

from console.backups import upload as uploading
from console.backups.after_restore import comparison, preview
from console.backups.disk_space import RESERVE_BYTES, free
from console.backups.folder import describe
from console.backups.jobs import Job
from console.backups.snapshot import present
from console.engine_control.routes import EndRequests
from console.pages import go_to, page
from console.parts import Config, Folder, PageRequest, TheBackupJobs, TheEngine
from console.refusals import Refusal
from migrations import HEAD

AT_ONCE_S = 2.0
"""Jobs that end within this time are reported on the next page; longer ones are followed there."""


@get("/backups")
async def backups(request: PageRequest, home: Folder, config: Config, backup_jobs: TheBackupJobs) -> Template:
    return page(
        request,
        "backups/backups.html",
        title="Backups",
        backups=await backup_jobs.backups(),
        job=backup_jobs.job,
        folder=backup_jobs.folder.path,
        in_container=config.engine_control == "docker",
        limit=uploading.LIMIT_BYTES,
        room=max(0, free(home.root) - RESERVE_BYTES),
    )


@post("/backups")
async def make_backup(
    request: PageRequest, backup_jobs: TheBackupJobs, data: URLEncodedBody[dict[str, str]]
) -> Response[Any]:
    """`launches` is `no` to leave launch folders out."""
    job = backup_jobs.make(with_launches=data.get("launches") != "no")
    return await _follow(request, backup_jobs, job)


@post("/backups/-/upload", request_max_body_size=None, status_code=200)
async def upload(request: PageRequest, backup_jobs: TheBackupJobs) -> Response[Any]:
    """The console's limit on request size does not apply here: `upload` has its own."""
    path = await uploading.receive(request, backup_jobs.folder)
    return go_to(request, "/backups", say=f"Uploaded {path.name}.")


@post("/backups/-/dismiss")
async def dismiss(request: PageRequest, backup_jobs: TheBackupJobs) -> Response[Any]:
    backup_jobs.dismiss()
    return go_to(request, "/backups")


@post("/backups/-/cancel")
async def cancel(request: PageRequest, backup_jobs: TheBackupJobs) -> Response[Any]:
    job = backup_jobs.cancel()
    if job is not None and await backup_jobs.settled(job, AT_ONCE_S):
        return go_to(request, "/backups", say=job.failure.message if job.failure else job.outcome)
    return go_to(request, "/backups")


@get("/backups/{name:str}")
async def download(name: FromPath[str], backup_jobs: TheBackupJobs) -> File:
    path = backup_jobs.folder.find(name)
    return File(
        path=path,
        filename=name,
        media_type="application/vnd.sqlite3" if name.endswith(".db") else "application/gzip",
        content_disposition_type="attachment",
    )


@post("/backups/{name:str}/check")
async def check(request: PageRequest, name: FromPath[str], backup_jobs: TheBackupJobs) -> Response[Any]:
    job = backup_jobs.check(name)
    return await _follow(request, backup_jobs, job)


@get("/backups/{name:str}/restore")
async def confirm(request: PageRequest, name: FromPath[str], home: Folder, backup_jobs: TheBackupJobs) -> Template:
    """Show what would be replaced, before anything is."""
    path = backup_jobs.folder.find(name)
    backup = await asyncio.to_thread(describe, path, path.stat())
    if backup.problem:
        raise Refusal(422, backup.problem, "Choose another backup.")
    after = await asyncio.to_thread(preview, home, path)
    now = await asyncio.to_thread(present, home)
    return page(
        request,
        "backups/restore.html",
        title="Restore a backup",
        backup=backup,
        summary=backup.summary,
        rows=comparison(now, after),
        after=after,
        head=HEAD,
        stays=request.user.name in after.contents.accounts,
    )


@post("/backups/{name:str}/restore")
async def restore(
    request: PageRequest,
    name: FromPath[str],
    data: URLEncodedBody[EndRequests],
    backup_jobs: TheBackupJobs,
    engine: TheEngine,
) -> Response[Any]:
    backup_jobs.folder.find(name)
    job = backup_jobs.restore(name, await engine.choose(data.when, "Restore"), request.user.name)
    return await _follow(request, backup_jobs, job)


@post("/backups/{name:str}/delete")
async def delete(request: PageRequest, name: FromPath[str], backup_jobs: TheBackupJobs) -> Response[Any]:
    await asyncio.to_thread(backup_jobs.folder.delete, name)
    return go_to(request, "/backups", say=f"Deleted {name}.")


async def _follow(request: PageRequest, backup_jobs: TheBackupJobs, job: Job) -> Response[Any]:
    if not await backup_jobs.settled(job, AT_ONCE_S):
        return go_to(request, "/backups")
    if job.failure is not None:
        raise job.failure
    return go_to(request, "/backups", say=job.outcome)


route_handlers: list[HTTPRouteHandler] = [
    backups,
    make_backup,
    upload,
    dismiss,
    cancel,
    download,
    check,
    confirm,
    restore,
    delete,
]
