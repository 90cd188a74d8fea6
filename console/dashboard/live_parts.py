"""The parts of pages that follow the engine, rendered when it changes and published to every open page."""

from __future__ import annotations

from jinja2 import Environment

from console.live.follower import Publisher
from console.live.hub import Hub
from console.live.view import EngineView

PARTS = {
    "strip": "pieces/strip.html",
    "now": "dashboard/now.html",
    "recent": "dashboard/recent.html",
    "playground": "playground/state.html",
}
"""Topic -> template; each is given `strip`, the engine as last seen, and `live`, which leaves times to the browser."""


def publisher(environment: Environment) -> Publisher:
    templates = {topic: environment.get_template(name) for topic, name in PARTS.items()}

    def publish(view: EngineView, hub: Hub) -> None:
        for topic, template in templates.items():
            hub.publish(topic, template.render(strip=view, live=True))

    return publish
