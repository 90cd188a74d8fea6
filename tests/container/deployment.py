"""`docker compose up` of this checkout, on ports and with images, volume and models folder of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.container.egress import EgressCounter, Network
from tests.container.wheels import lent_torch
from tests.running import ADMINISTRATOR, fetch, free_port

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "ingot-test"
TAG = os.environ.get("INGOT_TEST_TAG", "test")
ENGINE = "ingot-engine"
PIP = ("PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")
BUILD_S = 1200


def build() -> None:
    """The three images of this checkout."""
    command = ["docker", "compose", "--project-name", PROJECT, "--progress", "plain", "build"]
    with lent_torch() as pip:
        run(command, os.environ | pip | {"INGOT_TAG": TAG}, timeout_s=BUILD_S)


def build_elsewhere(context: Path) -> str:
    """What a build of the engine in another folder, with the arguments of this one, says it does."""
    with lent_torch() as pip:
        environ = os.environ | pip
        arguments = [f"--build-arg={name}" for name in PIP if name in environ]
        command = ["docker", "build", "--progress=plain", "--target=engine", *arguments, str(context)]
        return run(command, environ, timeout_s=BUILD_S, both=True)


def run(
    command: list[str], environ: Mapping[str, str], text: str = "", timeout_s: float = 60, *, both: bool = False
) -> str:
    """What the command printed. It must succeed."""
    done = subprocess.run(command, cwd=ROOT, env=environ, input=text, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout + done.stderr if both else done.stdout


class Deployment:
    """The three containers, and a browser's session with the console in them."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds what the containers see of this machine: models/, which the console writes, media/ and
        cache-packs/."""
        self.models, self.media, self.cache_packs = folder / "models", folder / "media", folder / "cache-packs"
        for path in (self.models, self.media, self.cache_packs):
            path.mkdir()
        for path in (folder, self.media, self.cache_packs):
            path.chmod(0o755)
        self.models.chmod(0o777)  # the containers' user is not the one who runs this
        self.console = f"http://127.0.0.1:{free_port()}"
        self.engine = f"http://127.0.0.1:{free_port()}"
        self.egress: EgressCounter | None = None
        self.browser = httpx.Client(base_url=self.console, follow_redirects=True, timeout=60, trust_env=False)
        self._environ = os.environ | {
            "INGOT_TAG": TAG,
            "INGOT_MODELS": str(self.models),
            "INGOT_MEDIA": str(self.media),
            "INGOT_CACHE_PACKS_FOLDER": str(self.cache_packs),
            "INGOT_CONSOLE_PORT": self.console.rsplit(":", 1)[1],
            "INGOT_ENGINE_PORT": self.engine.rsplit(":", 1)[1],
        }
        if os.environ.get("DOCKER_HOST", "").startswith("unix://"):
            self._environ["INGOT_DOCKER_SOCKET"] = os.environ["DOCKER_HOST"].removeprefix("unix://")

    def compose(self, *arguments: str, text: str = "", timeout_s: float = 120) -> str:
        """What `docker compose ARGUMENTS` printed. It must succeed."""
        return run(["docker", "compose", "--project-name", PROJECT, *arguments], self._environ, text, timeout_s)

    @contextmanager
    def changed(self, settings: Mapping[str, str]) -> Iterator[None]:
        """With these settings besides; what stands is brought up to them by `up`, and by the next one afterwards."""
        before, self._environ = self._environ, {**self._environ, **settings}
        try:
            yield
        finally:
            self._environ = before

    def docker(self, *arguments: str) -> str:
        return run(["docker", *arguments], self._environ)

    def create(self) -> None:
        """Networks and containers, none of which runs yet."""
        self.compose("up", "--no-start", "--no-build")

    def networks(self) -> list[Network]:
        """Its bridges on this machine."""
        names = self.docker(
            "network", "ls", "--quiet", "--filter", f"label=com.docker.compose.project={PROJECT}"
        ).split()
        found = json.loads(self.docker("network", "inspect", *names))
        return [Network(f"br-{network['Id'][:12]}", network["IPAM"]["Config"][0]["Subnet"]) for network in found]

    def up(self) -> None:
        """Until every container is healthy: the engine has generated a token."""
        try:
            self.compose("up", "--detach", "--wait", "--wait-timeout", "200", "--no-build", timeout_s=240)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.compose('logs', '--no-color', '--tail', '40')}") from None

    def container(self, service: str) -> dict[str, Any]:
        """`docker inspect` of a service's container."""
        (name,) = self.compose("ps", "--all", "--quiet", service).split()
        found: dict[str, Any] = json.loads(self.docker("inspect", name))[0]
        return found

    def containers(self) -> set[str]:
        return set(self.docker("ps", "--all", "--quiet", "--no-trunc").split())

    def setup_links(self) -> list[str]:
        return re.findall(r"http://\S+/setup\?code=\S+", self.compose("logs", "--no-color", "console"))

    def enter(self) -> httpx.Client:
        """A session with the console, signed in as the administrator; whoever comes first makes the account, with the
        link as it was printed."""
        name, password = ADMINISTRATOR
        form = {"name": name, "password": password}
        if self.browser.get("/").url.path == "/":
            return self.browser
        answer = self.browser.post("/sign-in", data=form)
        if answer.url.path != "/":
            code = self.setup_links()[-1].split("code=")[1]
            answer = self.browser.post("/setup", data={"code": code, **form})
        assert answer.url.path == "/", answer.text
        return self.browser

    def import_profile(self, text: str) -> None:
        self.compose("exec", "-T", "console", "ingot", "profile", "import", "--yes", "-", text=text)

    def activate(self, name: str) -> httpx.Response:
        return self.browser.post(f"/profiles/{name}/activate", data={}, headers={"accept": "application/json"})

    def state(self) -> dict[str, Any]:
        status, answer = fetch(f"{self.engine}/appliance/state")
        return answer if status == 200 else {}

    def ask(self, model: str) -> str:
        """A real token through the published port."""
        body = {"model": model, "messages": [{"role": "user", "content": "What does sealed mean?"}], "max_tokens": 8}
        status, answer = fetch(f"{self.engine}/v1/chat/completions", body)
        assert status == 200, answer
        assert answer["usage"]["completion_tokens"] > 0
        text: str = answer["choices"][0]["message"]["content"]
        return text
