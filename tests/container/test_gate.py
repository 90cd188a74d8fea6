"""What the gate lets through to Docker, and that it refuses everything else."""

from __future__ import annotations

import json
import re

import pytest

from console.engine_control.docker import STOP_WITHIN_S, events_path
from console.engine_control.docker_api import API_VERSION, QUIET_S
from console.engine_control.docker_output import Place, StampedLine
from console.settings import SETTINGS
from tests.container.deployment import ENGINE, ROOT

ENGINE_PATH = f"/v{API_VERSION}/containers/{ENGINE}"
EVENTS = f"/v{API_VERSION}{events_path(ENGINE)}"
LOGS = f"{ENGINE_PATH}/logs?follow=1&stdout=1&stderr=1&timestamps=1"

REFUSED = [
    # other calls
    ("GET", "/_ping"),
    ("GET", "/version"),
    ("GET", "/info"),
    ("GET", "/events"),
    ("GET", f"/v{API_VERSION}/events"),
    ("GET", f"/v{API_VERSION}/events?since=0"),
    ("GET", f"{EVENTS}&since=0"),
    ("GET", f"/v{API_VERSION}/events?since=0&{EVENTS.partition('?')[2]}"),
    ("GET", EVENTS.replace("ingot-engine", "ingot")),
    ("GET", EVENTS.replace("%22", '"')),
    ("GET", EVENTS.replace("%2C%22type%22%3A%5B%22container%22%5D", "")),
    ("GET", f"{EVENTS}&filters=%7B%7D"),
    ("POST", EVENTS),
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
    # the calls that pass, with other queries
    ("GET", f"{ENGINE_PATH}/json?size=1"),
    ("GET", f"{ENGINE_PATH}/json?"),
    ("GET", f"{ENGINE_PATH}/logs"),
    ("GET", f"{LOGS}"),
    ("GET", f"{LOGS}&tail=all"),
    ("GET", f"{LOGS}&tail=99999"),
    ("GET", f"{LOGS}&tail=5&tail=all"),
    ("GET", f"{LOGS}&tail=5&details=1"),
    ("GET", f"{LOGS}&since=0"),
    ("GET", f"{LOGS}&tail=5%26since=0"),
    ("GET", f"{LOGS}&tail=5#"),
    ("GET", f"{LOGS.replace('timestamps', 'details')}&tail=5"),
    ("POST", f"{ENGINE_PATH}/start?detachKeys=ctrl-a"),
    ("POST", f"{ENGINE_PATH}/start?checkpoint=x"),
    ("POST", f"{ENGINE_PATH}/stop"),
    ("POST", f"{ENGINE_PATH}/stop?t=999"),
    ("POST", f"{ENGINE_PATH}/stop?t=-1"),
    ("POST", f"{ENGINE_PATH}/stop?signal=KILL&t=1"),
    ("POST", f"{ENGINE_PATH}/restart?t=30&t=999"),
    ("POST", f"{ENGINE_PATH}/kill?signal=STOP"),
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
    # the whole address in place of a path
    ("GET", f"http://gate{ENGINE_PATH}/json"),
    ("GET", f"http://docker{ENGINE_PATH}/json"),
    ("GET", f"unix:///var/run/docker.sock{ENGINE_PATH}/json"),
    ("GET", f"gate{ENGINE_PATH}/json"),
    ("GET", "*"),
]


def _request(method: str, target: str, *headers: str, body: str = "") -> str:
    lines = [f"{method} {target} HTTP/1.1", "Host: gate", "Connection: close", *headers]
    return "\r\n".join(lines) + "\r\n\r\n" + body


def _through_gate(deployment, requests, wait_s=20):
    """Send each text to the gate as it stands, from where the console is: status and all that came back of each, until
    the gate ends the connection or `wait_s` have passed."""
    asked = json.dumps([wait_s, list(requests)])
    return json.loads(deployment.compose("exec", "-T", "console", "python", "-c", SEND, text=asked, timeout_s=300))


SEND = """
import json, socket, sys, time
wait_s, requests = json.load(sys.stdin)
answers = []
for request in requests:
    with socket.create_connection(("gate", 2375), timeout=5) as gate:
        gate.sendall(request.encode("latin-1"))
        answer, deadline = b"", time.monotonic() + wait_s
        while (left := deadline - time.monotonic()) > 0:
            gate.settimeout(left)
            try:
                part = gate.recv(65536)
            except OSError:
                break
            if not part:
                break
            answer += part
    status = answer.split(b" ", 2)[1] if answer.startswith(b"HTTP/1.") else b"0"
    answers.append([int(status), answer.decode("utf-8", "replace")[:100000]])
print(json.dumps(answers))
"""


def test_the_rules_are_those_the_console_calls_by():
    """The configuration compares whole targets with those that the console sends, and knows no other."""
    text = (ROOT / "gate" / "haproxy.cfg").read_text()
    exact = set(re.findall(r"^\s*acl \w+ url (/\S+)$", text, re.M))
    patterns = re.findall(r"^\s*acl \w+ url -m reg (\S+)$", text, re.M)
    assert exact == {EVENTS, *(f"{ENGINE_PATH}/{call}" for call in ("json", "start", "kill"))}
    place = Place("x")
    sent = {f"{ENGINE_PATH}/logs?{place.query(500)}"}
    place.is_new(StampedLine("2026-11-20T09:51:45.123456789Z", "text"))
    sent |= {f"{ENGINE_PATH}/logs?{place.query(500)}"}
    sent |= {f"{ENGINE_PATH}/{call}?t={STOP_WITHIN_S}" for call in ("stop", "restart")}
    assert [target for target in sent if not any(re.match(pattern, target) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not (pattern.startswith("^/v1\\.44/") and pattern.endswith("$"))] == []
    assert len(re.findall(r"^\s*acl \w+ (?:url|path|base|capture)", text, re.M)) == len(exact) + len(patterns)
    assert next(row.default for row in SETTINGS if row.name == "INGOT_ENGINE_CONTAINER") == ENGINE


def test_the_gate_waits_longer_than_the_console():
    """A quiet stream is taken up again by the console before the gate ends it."""
    text = (ROOT / "gate" / "haproxy.cfg").read_text()
    (minutes,) = re.findall(r"^    timeout server (\d+)m$", text, re.M)
    assert int(minutes) * 60 > QUIET_S


def test_what_the_console_needs_passes(deployment):
    """Inspect, logs and events, with their queries; a start of what runs already changes nothing."""
    asked = [
        _request("GET", f"{ENGINE_PATH}/json"),
        _request("POST", f"{ENGINE_PATH}/start", "Content-Length: 0"),
        _request("GET", f"{LOGS}&tail=5"),
        _request("GET", f"{LOGS}&since=1795168305.123456789"),
        _request("GET", EVENTS),
    ]
    inspected, start, *streams = _through_gate(deployment, asked, wait_s=2)
    assert inspected[0] == 200
    assert f'"Name":"/{ENGINE}"' in inspected[1]
    assert start[0] == 304
    assert [status for status, _ in streams] == [200, 200, 200]


def test_everything_else_is_refused(deployment):
    """Whatever the method, the container or the spelling: the gate itself answers, and nothing reaches Docker."""
    before = deployment.containers()
    answers = _through_gate(deployment, [_request(method, target) for method, target in REFUSED])
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
        (("Content-Type: application/json", "Content-Length: 2147483648"), "{}"),
        (("Content-Type: application/json", "Content-Length: 4294967296"), "{}"),
        (("Content-Type: application/json", "Content-Length: 18446744073709551615"), "{}"),
        (("Transfer-Encoding: chunked",), "2\r\n{}\r\n0\r\n\r\n"),
        (("Content-Length: 0", "Transfer-Encoding: chunked"), "0\r\n\r\nGET /images/json HTTP/1.1\r\nHost: x\r\n\r\n"),
    ],
)
def test_no_tunnel_and_no_body(deployment, headers, body):
    """An upgrade would leave the rules behind; a body could carry a container's settings, or a second request."""
    (answer,) = _through_gate(deployment, [_request("POST", f"{ENGINE_PATH}/start", *headers, body=body)])
    assert answer[0] in (400, 403)


def test_a_second_request_is_judged_for_itself(deployment):
    """What follows on the same connection gets no credit from what came before it, pipelined or not."""
    first = f"GET {ENGINE_PATH}/json HTTP/1.1\r\nHost: gate\r\n\r\n"
    (answer,) = _through_gate(deployment, [first + first + _request("GET", "/images/json")])
    assert answer[1].count("lets through only") == 1
    assert answer[1].count("HTTP/1.1 200") == 2
    assert "RepoTags" not in answer[1]


SECOND = "GET /images/json HTTP/1.1\r\nHost: x\r\n\r\n"
SMUGGLED = f"POST {ENGINE_PATH}/start HTTP/1.1\r\nHost: gate\r\n{{}}\r\n\r\n{SECOND}"


@pytest.mark.parametrize(
    "raw",
    [
        f"GET {ENGINE_PATH}/json HTTP/1.0\r\n\r\n",
        f"GET {ENGINE_PATH}/json HTTP/1.0\r\nHost: gate\r\nConnection: keep-alive\r\n\r\n",
        f"GET {ENGINE_PATH}/json\r\n",
        f"GET {ENGINE_PATH}/json HTTP/2.0\r\nHost: gate\r\n\r\n",
        f"GET {ENGINE_PATH}/json HTTP/1.1 HTTP/1.1\r\nHost: gate\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        SMUGGLED.format("Transfer-Encoding : chunked"),
        SMUGGLED.format("Transfer-Encoding: xchunked"),
        SMUGGLED.format("Transfer-Encoding:\tchunked"),
        SMUGGLED.format("Content-Length: 0\r\nContent-Length: 44"),
        SMUGGLED.format("Content-Length: 0, 44"),
        SMUGGLED.format("Content-Length: +44"),
        SMUGGLED.format("Content-Length: -1"),
        SMUGGLED.format("Content-Length: 44"),
        SMUGGLED.format("Expect: 100-continue\r\nContent-Length: 44"),
        SMUGGLED.format("Upgrade: tcp\r\nConnection: Upgrade"),
        SMUGGLED.format("X: y\rTransfer-Encoding: chunked"),
    ],
)
def test_what_is_not_plain_http_1_1_is_refused(deployment, raw):
    """Older, newer and broken spellings, and bodies that two readers would measure differently: the gate answers
    itself, and no list of images comes back."""
    (answer,) = _through_gate(deployment, [raw], wait_s=6)
    assert answer[0] in (0, 400, 403, 405, 408, 411, 422, 501, 505)
    assert "RepoTags" not in answer[1]
    assert '"Name":"/' not in answer[1]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (f"GET\t{ENGINE_PATH}/json\tHTTP/1.1\r\nHost: gate\r\nConnection: close\r\n\r\n", 200),
        (SMUGGLED.format("X: y\r\n Transfer-Encoding: chunked"), 304),
        (SMUGGLED.format("X: y\x00"), 304),
    ],
)
def test_what_the_gate_reads_it_writes_anew(deployment, raw, status):
    """Lenient readings of a call that passes come to that very call, and what follows is another request."""
    (answer,) = _through_gate(deployment, [raw], wait_s=3)
    assert answer[0] == status
    assert answer[1].count("lets through only") == raw.count(SECOND)
    assert "RepoTags" not in answer[1]


def test_headers_do_not_reach_docker():
    """Nothing of a request but what was compared: every way to Docker's socket takes all headers away first."""
    text = (ROOT / "gate" / "haproxy.cfg").read_text()
    ways = [part for part in re.split(r"^(?=\S)", text, flags=re.M) if "docker.sock" in part]
    assert [way.split()[1] for way in ways] == ["docker", "streams"]
    for way in ways:
        rules = [line.split("#")[0].split() for line in way.splitlines() if line.strip().startswith("http-request")]
        assert rules == [
            ["http-request", "del-header", ".*", "-m", "reg"],
            ["http-request", "set-header", "Host", "docker"],
        ]


def test_a_stream_ends_with_whoever_asked_for_it(deployment):
    """A console that was killed, again and again, leaves none behind: the limit is for those that somebody reads."""
    stream = _request("GET", f"{LOGS}&tail=5")
    answers = _through_gate(deployment, [stream] * 12, wait_s=0.5)
    assert [status for status, _ in answers] == [200] * 12


def test_a_greedy_client_does_not_lock_the_console_out(deployment):
    """Connections that say nothing, that say a byte a second, streams that nobody reads: the gate cuts off the first
    two, limits the third, and the console's calls are answered all the while."""
    printed = deployment.compose("exec", "-T", "console", "python", "-c", GREEDY, timeout_s=120, text=f"{LOGS}&tail=5")
    seen = json.loads(printed)
    assert seen["streams"] <= 8
    assert seen["refused"] >= 4
    assert seen["call"] == 200
    assert seen["after"] == 200
    assert seen["waited_s"] < 15


GREEDY = """
import json, socket, sys, time
logs = sys.stdin.read()
call = b"GET /v1.44/containers/ingot-engine/json HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"

def ask(data, timeout=3):
    gate = socket.create_connection(("gate", 2375), timeout=timeout)
    gate.sendall(data)
    return gate

def status(gate):
    head = gate.recv(64)
    return int(head.split(b" ")[1]) if head.startswith(b"HTTP/") else 0

streams = [ask(f"GET {logs} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode()) for _ in range(16)]
answers = [status(gate) for gate in streams]
seen = {"streams": answers.count(200), "refused": answers.count(429), "call": status(ask(call))}
# Now so many that say nothing that nobody else gets in, for as long as the gate lets them.
silent = []
for _ in range(100):
    try:
        silent.append(ask(b"GET /v1.44", 1))
    except OSError:
        break
began = time.monotonic()
seen["after"] = 0
while time.monotonic() - began < 60 and seen["after"] != 200:
    try:
        seen["after"] = status(ask(call, 20))
    except OSError:
        time.sleep(0.2)
seen["waited_s"] = time.monotonic() - began
print(json.dumps(seen))
"""


def test_the_engine_cannot_reach_the_gate(deployment):
    """Its container does not even know the name."""
    look = "import socket\ntry: socket.create_connection(('gate', 2375), 3)\nexcept OSError as e: print('no', e)"
    assert deployment.compose("exec", "-T", "engine", "python", "-c", look).startswith("no")
