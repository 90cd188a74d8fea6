"""What the gate lets through to Docker, and that it refuses everything else."""

from __future__ import annotations

import re

import pytest

from console.engine_control.docker import API_VERSION
from console.settings import SETTINGS
from tests.container.deployment import ENGINE, ROOT

ENGINE_PATH = f"/v{API_VERSION}/containers/{ENGINE}"
ALLOWED = {
    *(f"{ENGINE_PATH}/{call}" for call in ("json", "logs")),
    *(f"{ENGINE_PATH}/{call}" for call in ("start", "stop", "restart", "kill")),
}

REFUSED = [
    # other calls
    ("GET", "/_ping"),
    ("GET", "/version"),
    ("GET", "/info"),
    ("GET", "/events"),
    ("GET", "/images/json"),
    ("POST", "/images/create?fromImage=debian"),
    ("POST", "/build"),
    ("GET", "/containers/json?all=1"),
    ("POST", "/containers/create?name=other"),
    ("GET", "/volumes"),
    ("POST", "/volumes/create"),
    ("GET", "/secrets"),
    ("POST", "/session"),
    ("POST", "/grpc"),
    # other calls on the engine's container
    ("POST", f"{ENGINE_PATH}/exec"),
    ("POST", f"{ENGINE_PATH}/attach?stream=1&stdin=1"),
    ("POST", f"{ENGINE_PATH}/update"),
    ("POST", f"{ENGINE_PATH}/rename?name=other"),
    ("GET", f"{ENGINE_PATH}/archive?path=/"),
    ("PUT", f"{ENGINE_PATH}/archive?path=/"),
    ("GET", f"{ENGINE_PATH}/export"),
    ("GET", f"{ENGINE_PATH}/top"),
    ("DELETE", ENGINE_PATH),
    ("DELETE", f"{ENGINE_PATH}/json"),
    ("GET", f"{ENGINE_PATH}/restart"),
    ("POST", f"{ENGINE_PATH}/json"),
    ("HEAD", f"{ENGINE_PATH}/json"),
    ("OPTIONS", f"{ENGINE_PATH}/json"),
    ("CONNECT", f"{ENGINE_PATH}/json"),
    # other containers, and other spellings
    ("GET", f"/v{API_VERSION}/containers/ingot-test-gate-1/json"),
    ("POST", f"/v{API_VERSION}/containers/ingot-test-gate-1/kill"),
    ("GET", f"/v{API_VERSION}/containers/ingot-engine2/json"),
    ("GET", f"/containers/{ENGINE}/json"),
    ("GET", f"/v1.41/containers/{ENGINE}/json"),
    # tricks with the path
    ("GET", f"{ENGINE_PATH}/../ingot-test-gate-1/json"),
    ("GET", f"{ENGINE_PATH}/json/../../ingot-test-gate-1/json"),
    ("GET", f"{ENGINE_PATH}/../../images/json"),
    ("GET", f"{ENGINE_PATH}/%2e%2e/ingot-test-gate-1/json"),
    ("GET", f"{ENGINE_PATH}%2f..%2f..%2fimages%2fjson"),
    ("GET", f"{ENGINE_PATH}/json/"),
    ("GET", f"{ENGINE_PATH}//json"),
    ("GET", f"//v{API_VERSION}/containers/{ENGINE}/json"),
    ("GET", f"{ENGINE_PATH}/./json"),
    ("GET", f"{ENGINE_PATH}/json;x"),
    ("GET", f"{ENGINE_PATH}/json%00"),
    ("GET", f"{ENGINE_PATH}/JSON"),
    ("GET", f"/images/json?x={ENGINE_PATH}/json"),
    ("GET", f"/images/json#{ENGINE_PATH}/json"),
]


def _request(method: str, target: str, *headers: str, body: str = "") -> str:
    lines = [f"{method} {target} HTTP/1.1", "Host: gate", "Connection: close", *headers]
    return "\r\n".join(lines) + "\r\n\r\n" + body


def test_the_rules_are_those_the_console_calls_by():
    """The configuration names the API version and the container that the console uses, and no other path."""
    text = (ROOT / "gate" / "haproxy.cfg").read_text()
    assert set(re.findall(r"^\s*acl \w+ path (\S+)$", text, re.M)) == ALLOWED
    assert next(row.default for row in SETTINGS if row.name == "INGOT_ENGINE_CONTAINER") == ENGINE


def test_what_the_console_needs_passes(deployment):
    """Inspect and logs, with their queries; a start of what runs already changes nothing."""
    asked = [
        _request("GET", f"{ENGINE_PATH}/json"),
        _request("GET", f"{ENGINE_PATH}/logs?stdout=1&stderr=1&tail=5"),
        _request("POST", f"{ENGINE_PATH}/start", "Content-Length: 0"),
    ]
    inspected, logs, start = deployment.through_gate(asked)
    assert inspected[0] == 200
    assert f'"Name":"/{ENGINE}"' in inspected[1]
    assert logs[0] == 200
    assert start[0] == 304


def test_everything_else_is_refused(deployment):
    """Whatever the method, the container or the spelling: the gate itself answers, and Docker never hears of it."""
    before = deployment.containers()
    answers = deployment.through_gate(_request(method, target) for method, target in REFUSED)
    let_through = [
        (*asked, status)
        for asked, (status, body) in zip(REFUSED, answers, strict=True)
        if not (status == 400 or (status == 403 and ("lets through only" in body or asked[0] == "HEAD")))
    ]
    assert let_through == []
    assert deployment.containers() == before


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"), ""),
        (("Upgrade: tcp",), ""),
        (("Content-Type: application/json", "Content-Length: 2"), "{}"),
        (("Transfer-Encoding: chunked",), "2\r\n{}\r\n0\r\n\r\n"),
        (("Content-Length: 0", "Transfer-Encoding: chunked"), "0\r\n\r\nGET /images/json HTTP/1.1\r\nHost: x\r\n\r\n"),
    ],
)
def test_no_tunnel_and_no_body(deployment, headers, body):
    """An upgrade would leave the rules behind; a body could carry a container's settings, or a second request."""
    (answer,) = deployment.through_gate([_request("POST", f"{ENGINE_PATH}/start", *headers, body=body)])
    assert answer[0] in (400, 403)


def test_a_second_request_is_judged_for_itself(deployment):
    """What follows on the same connection gets no credit from what came before it."""
    first = f"GET {ENGINE_PATH}/logs?tail=1 HTTP/1.1\r\nHost: gate\r\n\r\n"
    (answer,) = deployment.through_gate([first + _request("GET", "/images/json")])
    assert "lets through only" in answer[1]


def test_the_engine_cannot_reach_the_gate(deployment):
    """Its container does not even know the name."""
    look = "import socket\ntry: socket.create_connection(('gate', 2375), 3)\nexcept OSError as e: print('no', e)"
    assert deployment.compose("exec", "-T", "engine", "python", "-c", look).startswith("no")
