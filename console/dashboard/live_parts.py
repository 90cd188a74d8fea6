"""The parts of pages that follow the engine, rendered when it changes and published to every open page."""

from __future__ import annotations

from jinja2 import Environment

from appliance.launches.catalogue import Catalogue
from console.dashboard.now import now
from console.live.follower import Publisher
from console.live.hub import Hub
from console.live.view import EngineView

PARTS = {
    "strip": "pieces/strip.html",
    "now": "dashboard/now.html",
    "recent": "dashboard/recent.html",
    "call": "dashboard/call.html",
    "output": "logs/output.html",
    "playground": "playground/state.html",
}
"""Topic -> template; each is given `strip`, the engine as last seen, `now`, what the dashboard knows beyond it, and
`live`, which leaves times to the browser."""


def publisher(environment: Environment, catalogue: Catalogue) -> Publisher:
    templates = {topic: environment.get_template(name) for topic, name in PARTS.items()}

    def publish(view: EngineView, hub: Hub) -> None:
        known = now(view, catalogue)
        for topic, template in templates.items():
            hub.publish(topic, template.render(strip=view, now=known, live=True))

    return publish
