"""Where to go after signing in: an address of this console, whatever `next` says."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

DASHBOARD = "/"
MOST_LAYERS = 4
"""Of percent-encoding: what a browser, or a proxy on the way, might still decode."""
AS_IT_IS = "/:@!$&'()*+,;=-._~%"


def local_path(url: str) -> str:
    """`url` if it is a path of this console, with nothing raw in it; otherwise the dashboard.

    Browsers drop tabs and line breaks and take a backslash for a slash: `/<tab>/evil.example` would lead to another
    site. Neither may stand in it, encoded or not."""
    if not all(_is_local(layer) for layer in _layers(url)):
        return DASHBOARD
    parts = urlsplit(url)
    query = f"?{quote(parts.query, safe=AS_IT_IS + '?')}" if parts.query else ""
    return quote(parts.path, safe=AS_IT_IS) + query


def _layers(url: str) -> list[str]:
    """The address, decoded repeatedly until it no longer changes; a final one that is never local if that does not
    end."""
    layers = [url]
    while (decoded := unquote(layers[-1])) != layers[-1]:
        if len(layers) == MOST_LAYERS:
            return [*layers, ""]
        layers.append(decoded)
    return layers


def _is_local(url: str) -> bool:
    path = url.partition("?")[0]
    return url.isprintable() and path.startswith("/") and "//" not in path and "\\" not in url
