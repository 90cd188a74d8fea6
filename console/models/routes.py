"""Pages of this subject."""

from __future__ import annotations

from litestar.handlers import HTTPRouteHandler

route_handlers: list[HTTPRouteHandler] = []
