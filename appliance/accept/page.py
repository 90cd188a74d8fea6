"""A report as one page that needs nothing else, to be printed and signed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from appliance import __version__
from appliance.accept.report import Cell, Moment, Report, as_json, fingerprint
from appliance.accept.words import VERDICTS, bound, by_section, figure, minutes, remark, status
from appliance.bench.plots import Tick
from appliance.bench.words import duration

HEADROOM: Final = 1.15  # above the highest point of a plot


class NeedleRow(NamedTuple):
    length: int
    cells: list[Cell | None]


class Line(NamedTuple):
    """Points of an SVG polyline and polygon in percent, with y downwards."""

    points: str
    area: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]


def render(report: Report) -> str:
    loader = ChoiceLoader([PackageLoader("appliance.accept", "."), PackageLoader("appliance.bench", ".")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("acceptance.html").render(
        report=report,
        version=__version__,
        verdict=VERDICTS[report.verdict],
        sections=by_section(report),
        figure=figure,
        bound=bound,
        status=status,
        remark=remark,
        took=minutes(report.seconds),
        depths=_depths(report.needles),
        needles=_needle_rows(report.needles),
        line=_line(report.soak) if len(report.soak) > 1 else None,
        fingerprint=fingerprint(as_json(report)),
    )


def _depths(cells: Sequence[Cell]) -> list[float]:
    return sorted({cell.depth for cell in cells})


def _needle_rows(cells: Sequence[Cell]) -> list[NeedleRow]:
    by_place = {(cell.length, cell.depth): cell for cell in cells}
    lengths = sorted({cell.length for cell in cells})
    return [NeedleRow(length, [by_place.get((length, depth)) for depth in _depths(cells)]) for length in lengths]


def _line(moments: Sequence[Moment]) -> Line:
    """Seconds per token over the time of the soak."""
    end = moments[-1].at_s or 1.0
    top = HEADROOM * max(moment.seconds_per_token for moment in moments)
    places = [(100 * moment.at_s / end, 100 - 100 * moment.seconds_per_token / top) for moment in moments]
    points = " ".join(f"{x:.3f},{y:.3f}" for x, y in places)
    area = f"{places[0][0]:.3f},100 {points} {places[-1][0]:.3f},100"
    x_ticks = [Tick(100 * share, minutes(end * share)) for share in (0, 0.25, 0.5, 0.75, 1)]
    y_ticks = [Tick(100 * share / HEADROOM, duration(top * share / HEADROOM)) for share in (0.5, 1)]
    return Line(points, area, x_ticks, y_ticks)
