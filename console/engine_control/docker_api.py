"""Docker's API as far as the gate lets it through, over HTTP.

Not with Docker's own library: it blocks a thread for every quiet stream and ends it only from another one. Here whoever
waits can be cancelled, and the stream is closed with it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import msgspec

# Spoken since Docker 25. Asking the daemon for its version would be one more call that the gate lets through.
API_VERSION: Final = "1.44"
DEFAULT_HOST: Final = "unix:///var/run/docker.sock"
ANSWERS_WITHIN_S: Final = 5.0
QUIET_S: Final = 600.0
"""A stream that is silent for this long is reopened; the gate's own timeout is longer."""

KEPT_S: Final = 5.0
"""How long an idle connection may be reused; the gate closes it later."""


class DockerUnreachable(Exception):
    """There was no answer, or it was interrupted."""


class DockerRefusal(Exception):
    """Docker, or the gate in front of it, returned an error; the text is theirs."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class DockerHostError(ValueError):
    """DOCKER_HOST has a value that cannot be used."""


class _Said(msgspec.Struct):
    message: str = ""


class DockerApi:
    """`host` is an address in the form of DOCKER_HOST. `path` below follows the API's version and includes the query
    exactly as sent: the gate compares it byte by byte."""

    def __init__(self, host: str) -> None:
        kind, _, rest = host.partition("://")
        if kind not in ("unix", "tcp") or not rest:
            raise DockerHostError(f"DOCKER_HOST is {host!r}. Use unix:///path/of/docker.sock or tcp://HOST:PORT.")
        self.host = host
        self._client = httpx.AsyncClient(
            base_url=f"http://{rest.rstrip('/')}" if kind == "tcp" else "http://docker",
            transport=httpx.AsyncHTTPTransport(
                uds=rest if kind == "unix" else None, limits=httpx.Limits(keepalive_expiry=KEPT_S)
            ),
            timeout=ANSWERS_WITHIN_S,
            trust_env=False,  # the gate is never behind a proxy
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> DockerApi:
        return cls(environ.get("DOCKER_HOST") or DEFAULT_HOST)

    async def get(self, path: str) -> dict[str, Any]:
        answer = await self._send("GET", path, ANSWERS_WITHIN_S)
        found: dict[str, Any] = msgspec.json.decode(answer)
        return found

    async def post(self, path: str, within_s: float) -> None:
        await self._send("POST", path, within_s)

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[tuple[str, AsyncGenerator[bytes]]]:
        """The response's media type, and its bytes as they arrive, until Docker ends the stream."""
        timeout = httpx.Timeout(ANSWERS_WITHIN_S, read=QUIET_S)
        try:
            async with self._client.stream("GET", f"/v{API_VERSION}{path}", timeout=timeout) as response:
                if not response.is_success:
                    await response.aread()
                    raise _refusal(response)
                yield response.headers.get("content-type", ""), _bytes(response)
        except httpx.TransportError as error:
            raise DockerUnreachable(_words(error)) from error

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(self, method: str, path: str, within_s: float) -> bytes:
        timeout = httpx.Timeout(ANSWERS_WITHIN_S, read=within_s)
        try:
            response = await self._client.request(method, f"/v{API_VERSION}{path}", timeout=timeout)
        except httpx.TransportError as error:
            raise DockerUnreachable(_words(error)) from error
        if response.status_code >= 400:
            raise _refusal(response)
        return response.content


async def _bytes(response: httpx.Response) -> AsyncGenerator[bytes]:
    try:
        async for block in response.aiter_raw():
            yield block
    except httpx.ReadTimeout:
        return
    except httpx.TransportError as error:
        raise DockerUnreachable(_words(error)) from error


def _refusal(response: httpx.Response) -> DockerRefusal:
    try:
        said = msgspec.json.decode(response.content, type=_Said).message
    except msgspec.DecodeError:
        said = ""
    return DockerRefusal(response.status_code, said or f"HTTP status {response.status_code}")


def _words(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error).rstrip(".") or type(error).__name__
