"""The Benchmarks page."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Template

from console.benchmarks import load, service
from console.benchmarks.service import Benchmarks
from console.pages import fragment, go_to, page
from console.parts import PageRequest, Session

TheBenchmarks = NamedDependency[Benchmarks]


@get("/benchmarks")
async def benchmarks_page(request: PageRequest, session: Session, benchmarks: TheBenchmarks) -> Template:
    rows = await service.list_benchmarks(session)
    return page(request, "benchmarks/benchmarks.html", title="Benchmarks", rows=rows, benchmarks=benchmarks, load=load)


@get("/benchmarks/results")
async def results(session: Session, benchmarks: TheBenchmarks) -> Template | Response[None]:
    """The part of the page that asks for itself again while a benchmark runs; at its end the whole page is loaded."""
    if benchmarks.running is None:
        return Response(None, status_code=204, headers={"HX-Refresh": "true"})
    rows = await service.list_benchmarks(session)
    return fragment("benchmarks/results.html", rows=rows, benchmarks=benchmarks, load=load)


@post("/benchmarks")
async def start(request: PageRequest, benchmarks: TheBenchmarks) -> Response[Any]:
    benchmarks.start(request.user.name)
    return go_to(request, "/benchmarks")


@post("/benchmarks/{benchmark_id:int}/delete")
async def delete(request: PageRequest, session: Session, benchmark_id: FromPath[int]) -> Response[Any]:
    await service.forget(session, benchmark_id)
    return go_to(request, "/benchmarks", say="Deleted that result.")


route_handlers: list[HTTPRouteHandler] = [benchmarks_page, results, start, delete]
