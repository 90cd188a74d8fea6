"""The routes of this subject, and what they do with the service's refusals.

Addresses with `/-/` in them cannot be a profile's: a name begins with a letter or a digit.
"""

from __future__ import annotations

from litestar import Router

from console.profiles import activation_routes, editing, importing, viewing
from console.profiles.errors import ProfileRefusal
from console.profiles.web import on_profile_refusal

route_handlers = [
    Router(
        path="/",
        route_handlers=[
            *viewing.route_handlers,
            *editing.route_handlers,
            *importing.route_handlers,
            *activation_routes.route_handlers,
        ],
        exception_handlers={ProfileRefusal: on_profile_refusal},
    )
]
