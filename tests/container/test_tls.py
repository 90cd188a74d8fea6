"""HTTPS in front, and secrets from files: the compose files that are added to the first one."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.container.deployment import Deployment
from tests.running import free_port, wait_for

NAME = "ingot.example.org"
KEY = "0123456789abcdef0123456789abcdef"
CERTIFICATE = (
    "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
    "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}",
)  # fmt: skip


TRY = """
import socket, sys
for port in (8443, 9443):
    try:
        socket.create_connection(("tls", port), 1).close()
        print(port)
    except OSError:
        pass
"""


@dataclass
class Secured:
    """Where HTTPS is spoken on this machine, and a client that believes in the certificate."""

    console: int
    engine: int
    client: httpx.Client

    def ask(self, port: int, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Host": f"{NAME}:{port}", **more.pop("headers", {})}
        url = f"https://127.0.0.1:{port}{path}"
        return self.client.request(method, url, headers=headers, extensions={"sni_hostname": NAME}, **more)


@pytest.fixture(scope="module")
def secured(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The deployment with both added, and afterwards as it was."""
    folder = tmp_path_factory.mktemp("secrets")
    certificate, key = folder / "tls.crt", folder / "tls.key"
    subprocess.run([*CERTIFICATE, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
    key.chmod(0o600)
    ports = free_port(), free_port()
    made = {
        "COMPOSE_FILE": "compose.yaml:compose.tls.yaml:compose.secrets.yaml",
        "INGOT_TLS_NAME": NAME,
        "INGOT_TLS_ADDRESS": "127.0.0.1",
        "INGOT_TLS_CONSOLE_PORT": str(ports[0]),
        "INGOT_TLS_ENGINE_PORT": str(ports[1]),
        "INGOT_TLS_CERTIFICATE": str(certificate),
        "INGOT_TLS_KEY": str(key),
        "INGOT_TLS_USER": f"{os.getuid()}:{os.getgid()}",
        "INGOT_ADMIN_PASSWORD_FILE": str(_readable(folder / "admin-password", "a password that nobody is asked for")),
        "INGOT_API_KEY_FILE": str(_readable(folder / "api-key", KEY)),
    }
    with deployment.changed(made):
        deployment.up()
        trusted = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(verify=trusted, trust_env=False, timeout=30) as client:
            secured = Secured(*ports, client)
            # The proxy is up before the console that it waits for.
            wait_for("the console is reached", lambda: reached(secured), 60)
            yield secured
        deployment.compose("rm", "--stop", "--force", "tls")
    deployment.up()


def reached(secured: Secured) -> bool:
    return secured.ask(secured.console, "GET", "/sign-in").status_code != 503


def _readable(path: Path, text: str) -> Path:
    """The containers' user is another one than ours."""
    path.write_text(f"{text}\n")
    path.chmod(0o444)
    return path


def test_the_console_answers_through_https(secured):
    """Under the name in the certificate, and not for a page of another site."""
    answer = secured.ask(secured.console, "GET", "/sign-in")
    assert answer.status_code == 200
    assert "Sign in" in answer.text
    forged = secured.ask(
        secured.console, "POST", "/sign-in", headers={"Origin": "https://elsewhere.example"}, data={"name": "x"}
    )
    assert forged.status_code == 403


def test_the_api_asks_for_the_key_of_the_file(secured):
    """Through HTTPS as through the loopback; with it, a real token."""
    assert secured.ask(secured.engine, "GET", "/v1/models").status_code == 401
    asked = {"Authorization": f"Bearer {KEY}"}
    models = secured.ask(secured.engine, "GET", "/v1/models", headers=asked).json()
    body = {"model": models["data"][0]["id"], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    answer = secured.ask(secured.engine, "POST", "/v1/chat/completions", headers=asked, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0


def test_old_tls_is_refused(secured):
    """Nothing below 1.2 is spoken."""
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with httpx.Client(verify=old, trust_env=False) as client, pytest.raises(httpx.ConnectError):
        client.get(f"https://127.0.0.1:{secured.console}/")


def test_the_one_who_speaks_tls_is_confined_and_apart_from_docker(secured, deployment):
    """No capability, nothing to write, and no network in common with the gate."""
    container = deployment.container("tls")
    assert container["HostConfig"]["ReadonlyRootfs"]
    assert container["HostConfig"]["CapDrop"] == ["ALL"]
    assert not [mount for mount in container["Mounts"] if mount["RW"]]
    assert not set(container["NetworkSettings"]["Networks"]) & set(
        deployment.container("gate")["NetworkSettings"]["Networks"]
    )


def test_the_engine_reaches_the_console_through_nobody(secured, deployment):
    """The proxy answers where it is published, and not on the network that it asks the engine by."""
    assert deployment.compose("exec", "-T", "engine", "python", "-c", TRY) == ""
