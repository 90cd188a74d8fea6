"""A signed-in visitor of the console, and what stands on the pages that it has open."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import yaml

from appliance.home import Home
from appliance.profile.active import read_active
from appliance.protocol import Finding
from console.after_post import PARAMETER
from tests.running import ADMINISTRATOR, Appliance, wait_for

BROWSER = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
NOW = {"when": "now"}


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def text_of(html: str) -> str:
    """What a person reads of a page, in one line."""
    parser = _Text()
    parser.feed(html)
    parser.close()
    return " ".join(" ".join(parser.parts).split())


def says(text: str, words: Sequence[str]) -> bool:
    return all(re.search(word, text, re.IGNORECASE) for word in words)


class Visitor:
    """The administrator's browser, without the browser: its requests are those of the pages."""

    def __init__(self, running: Appliance) -> None:
        self._running = running
        self._client = httpx.Client(base_url=running.console, headers=BROWSER, timeout=60, trust_env=False)
        name, password = ADMINISTRATOR
        code = parse_qs(urlsplit(running.setup_link).query)["code"][0]
        answer = self._client.post("/setup", data={"code": code, "name": name, "password": password})
        assert answer.status_code == 303, answer.text

    def save(self, document: dict[str, Any]) -> httpx.Response:
        """A new profile, typed as YAML."""
        data = {"view": "yaml", "yaml": yaml.safe_dump(document)}
        return self._shown(self._client.post("/profiles/-/new", data=data))

    def activate(self, name: str) -> httpx.Response:
        """Its button; and where the console asks whether to wait for running requests, the one that ends them. It asks
        too where it cannot know of any, as the engine does not answer."""
        answer = self._shown(self._client.post(f"/profiles/{name}/activate", data={}))
        if answer.status_code == 409:
            answer = self._shown(self._client.post(f"/profiles/{name}/activate", data=NOW))
        return answer

    def _shown(self, answer: httpx.Response) -> httpx.Response:
        """A refusal is kept at an address of its own, to which the browser is sent."""
        where = answer.headers.get("location", "")
        return self._client.get(where) if f"?{PARAMETER}=" in where else answer

    def findings(self, name: str) -> list[Finding]:
        """The same once more, as a program asks, and what preflight found."""
        answer = self._client.post(f"/profiles/{name}/activate", data=NOW, headers={"Accept": "application/json"})
        return msgspec.convert(answer.json()["findings"], list[Finding])

    def engine(self, action: str) -> None:
        """Its button: start, stop or restart."""
        self._client.post(f"/engine/{action}")

    def launch_asked_for(self) -> str:
        """The id that the launch has, or will have, which the last Activate asked for."""
        active = read_active(Home.at(self._running.home))
        assert active is not None
        assert active.launch is not None
        return active.launch

    def watch(self, launch: str, words: Sequence[str]) -> Watched:
        return Watched(self._client, launch, words)

    def close(self) -> None:
        self._client.close()


class Watched:
    """The page of a launch, kept open: it gets every change, as a browser does. `told` is the moment at which
    `words` stood on it; `text` what stands there now."""

    def __init__(self, client: httpx.Client, launch: str, words: Sequence[str]) -> None:
        self.text = ""
        self.told: float | None = None
        self._client = client
        self._topic = f"launch:{launch}"
        self._words = words
        self._closed = False
        threading.Thread(target=self._follow, name="page", daemon=True).start()

    def close(self) -> None:
        self._closed = True

    def _follow(self) -> None:
        while not self._closed:
            try:
                with self._client.stream("GET", "/live", params={"topic": self._topic}) as stream:
                    stream.raise_for_status()
                    lines: list[str] = []
                    for line in stream.iter_lines():
                        if self._closed:
                            return
                        if line.startswith("data: "):
                            lines.append(line.removeprefix("data: "))
                        elif not line and lines:
                            self._show("\n".join(lines))
                            lines = []
            except httpx.HTTPError:
                time.sleep(0.1)  # as a browser asks again

    def _show(self, html: str) -> None:
        self.text = text_of(html)
        if self.told is None and says(self.text, self._words):
            self.told = time.time()

    def wait_told(self, patience_s: float, over: Any) -> float | None:
        """The moment at which it was reported. None if it was not within `patience_s`, or when `over()` says that
        nothing more will come."""

        def look() -> bool:
            return self.told is not None or over()

        try:
            wait_for("the cause on the page", look, patience_s, every_s=0.01)
        except TimeoutError:
            return None
        return self.told
