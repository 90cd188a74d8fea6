"""What the compose files tell the engine about the addresses that its API is published on. No daemon is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest

from tests.container.deployment import ROOT

FILES = {"plain": ["compose.yaml"], "https": ["compose.yaml", "compose.tls.yaml"]}


def services(files: list[str], settings: dict[str, str]) -> dict[str, Any]:
    options = [f"--file={ROOT / name}" for name in files]
    command = ["docker", "compose", "--env-file=/dev/null", *options, "config", "--format=json"]
    environment = {"PATH": os.environ["PATH"], "INGOT_TLS_NAME": "ingot.example.org", **settings}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    parsed: dict[str, Any] = json.loads(told.stdout)["services"]
    return parsed


def _compose_answers() -> bool:
    """The client comes without its plugin in some distributions; `make test-containers` installs both."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _compose_answers(), reason="there is no `docker compose` to read the compose files")
@pytest.mark.parametrize("files", FILES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"INGOT_API_ADDRESS": "0.0.0.0"},
        {"INGOT_API_ADDRESS": "0.0.0.0", "INGOT_TLS_ADDRESS": "127.0.0.1"},
        {"INGOT_API_ADDRESS": "127.0.0.1", "INGOT_TLS_ADDRESS": "127.0.0.1"},
        {"INGOT_API_ADDRESS": "192.0.2.1", "INGOT_TLS_ADDRESS": "192.0.2.2"},
    ],
)
def test_the_engine_knows_every_address_that_its_api_is_published_on(files, settings):
    """Directly and through the proxy: a key is required unless all of them are loopback addresses."""
    made = services(FILES[files], settings)
    ways_in = [made[name] for name in ("engine", "tls") if name in made]
    published = {port["host_ip"] for service in ways_in for port in service["ports"]}
    assert set(made["engine"]["environment"]["INGOT_PUBLISHED_ADDRESS"].split(",")) == published
