"""How a page is made: the template environment, what every page is given, and answers that lead to another page."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader, StrictUndefined
from litestar import Request, Response
from litestar.plugins.jinja import JinjaTemplateEngine
from litestar.response import Redirect, Template
from litestar.template import TemplateConfig
from markupsafe import Markup

from appliance import __version__
from console import formats
from console.launches import fixes
from console.phase_line import phase_line
from console.profiles import words

CONSOLE = Path(__file__).parent
STATIC = CONSOLE / "static"
ICONS = STATIC / "vendor" / "lucide-1.62.0"
THEMES = ("auto", "light", "dark")


class Place(NamedTuple):
    """A row of the rail. `key` is the letter that goes there after `g`."""

    path: str
    name: str
    icon: str
    key: str


PLACES = (
    Place("/", "Dashboard", "layout-dashboard", "d"),
    Place("/profiles", "Profiles", "sliders-horizontal", "p"),
    Place("/launches", "Launches", "rocket", "l"),
    Place("/log", "Log", "scroll-text", "o"),
    Place("/models", "Models", "box", "m"),
    Place("/hardware", "Hardware", "cpu", "h"),
    Place("/playground", "Playground", "message-square", "y"),
    Place("/benchmarks", "Benchmarks", "gauge", "b"),
)
OFFICE = (
    Place("/access", "Access", "key-round", "a"),
    Place("/backups", "Backups", "archive", "u"),
)
ON_A_PHONE = ("/", "/profiles", "/log", "/playground")


def section(path: str) -> str:
    """The page of the rail that an address belongs to; the dashboard where there is none."""
    first = f"/{path.strip('/').partition('/')[0]}"
    return first if first in {place.path for place in (*PLACES, *OFFICE)} else "/"


def environment() -> Environment:
    """Templates of a subject are named by its folder: `profiles/list.html` is console/profiles/templates/list.html."""
    subjects = {folder.parent.name: FileSystemLoader(folder) for folder in CONSOLE.glob("*/templates")}
    made = Environment(
        loader=ChoiceLoader([FileSystemLoader(CONSOLE / "templates"), PrefixLoader(subjects)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        icon=icon,
        static=static,
        version=__version__,
        places=PLACES,
        office=OFFICE,
        on_a_phone=[place for place in PLACES if place.path in ON_A_PHONE],
        phase_line=phase_line,
        field_label=words.field_label,
        field_value=words.field_value,
        fix_changes=fixes.changes,
        fix_place=fixes.place,
        fix_together=fixes.together,
    )
    made.filters.update(formats.FILTERS)
    return made


def template_config(templates: Environment) -> TemplateConfig[JinjaTemplateEngine]:
    return TemplateConfig(instance=JinjaTemplateEngine.from_environment(templates))


@lru_cache
def icon(name: str) -> Markup:
    """The named icon as SVG that takes the text's colour and size, hidden from screen readers."""
    text = (ICONS / f"{name}.svg").read_text()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    return Markup(
        '<svg class="icon" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.75" '
        'stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false">' + " ".join(body.split())
    )


@lru_cache
def static(path: str) -> str:
    """The address of a static file; it changes with the content, so that browsers may keep it for ever."""
    digest = hashlib.sha256((STATIC / path).read_bytes()).hexdigest()[:10]
    return f"/static/{path}?{digest}"


def page(
    request: Request[Any, Any, Any],
    template: str,
    /,
    *,
    title: str,
    status_code: int = 200,
    headers: dict[str, str] | None = None,
    **context: Any,
) -> Template:
    """A whole page. Every template that extends base.html is given: `title`, `user` (None when nobody is signed in),
    `strip` (the engine as last seen), `notes` (said once), `here` (the path), and `theme`."""
    console = request.app.state.console
    user = request.scope.get("user")
    theme = request.cookies.get("ingot-theme", "auto")
    return Template(
        template_name=template,
        context={
            "title": title,
            "user": user,
            "strip": console.follower.view,
            "notes": console.notes.take(user.session_id) if user else [],
            "here": request.scope["path"],
            "theme": theme if theme in THEMES else "auto",
            **context,
        },
        status_code=status_code,
        headers=headers,
        media_type="text/html",
    )


def fragment(
    template: str, /, *, status_code: int = 200, headers: dict[str, str] | None = None, **context: Any
) -> Template:
    """A part of a page, for htmx and live updates: it gets only what it is given."""
    return Template(
        template_name=template, context=context, status_code=status_code, headers=headers, media_type="text/html"
    )


def go_to(request: Request[Any, Any, Any], url: str, *, say: str = "", tone: str = "good") -> Response[Any]:
    """Lead the browser to `url` after a form was done; `say` is shown there once, as a toast."""
    user = request.scope.get("user")
    if say and user:
        request.app.state.console.notes.add(user.session_id, say, tone)
    if request.headers.get("hx-request") == "true":
        return Response(content=None, status_code=204, headers={"HX-Redirect": url})
    return Redirect(url, status_code=303)


class Note(NamedTuple):
    text: str
    tone: str


class Notes:
    """What the next page of a browser says once: kept in memory, a few for each session."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Note]] = {}

    def add(self, session_id: int, text: str, tone: str = "good") -> None:
        waiting = self._waiting.setdefault(session_id, [])
        waiting.append(Note(text, tone))
        del waiting[:-3]

    def take(self, session_id: int) -> list[Note]:
        return self._waiting.pop(session_id, [])
