"""What code that runs in the engine can reach: tried from inside its container, as its user, beside a console that has
an account, an API key and a backup."""

from __future__ import annotations

import json

import pytest

# Every file of the state folder is tried by its name, as the console lists it; every address by every port on which any
# of the containers listens.
TRY_FILES = """
import json, os, sys
reached = []
for path in json.loads(sys.argv[1]):
    for what, flags in (("reads", os.O_RDONLY), ("writes", os.O_WRONLY)):
        try:
            os.close(os.open(path, flags))
            reached.append(f"{what} {path}")
        except OSError:
            pass
for folder in json.loads(sys.argv[2]):
    for what, bits in (("lists", os.R_OK), ("makes files in", os.W_OK)):
        if os.access(folder, bits):
            reached.append(f"{what} {folder}")
print(json.dumps(reached))
"""
TRY_ADDRESSES = """
import json, socket, sys
open_at = []
for host in json.loads(sys.argv[1]):
    for port in (80, 443, 2375, 2376, 8000, 8080, 8404, 8443, 9443):
        try:
            socket.create_connection((host, port), 0.5).close()
            open_at.append(f"{host}:{port}")
        except OSError:
            pass
print(json.dumps(open_at))
"""
HOME = "/var/lib/ingot"
ENGINES_OWN = ("launches", "selftest", "caches")
ENGINE_READS = ("active/profile.yaml", "active/keys.json", "active/console-token.sha256")


@pytest.fixture(scope="module")
def lived_in(deployment):
    """With an account, an API key and a backup, and the engine ready."""
    deployment.enter()
    deployment.browser.post("/access/keys", data={"name": "for the test"})
    deployment.compose("exec", "-T", "console", "ingot", "backup", "create")
    deployment.up()
    return deployment


def inside(deployment, service: str, program: str, *arguments: object) -> list[str]:
    given = [json.dumps(argument) for argument in arguments]
    answer: list[str] = json.loads(deployment.compose("exec", "-T", service, "python", "-c", program, *given))
    return answer


def found(deployment, kind: str) -> list[str]:
    """Paths below the state folder, as the console sees them."""
    return deployment.compose("exec", "-T", "console", "find", HOME, "-type", kind).split()


def test_engine_and_console_are_two_users(lived_in):
    users = {
        service: lived_in.compose("exec", "-T", service, "id", "--user").strip() for service in ("engine", "console")
    }
    assert users == {"engine": "10002", "console": "10001"}


def test_the_engine_reaches_no_file_of_the_consoles(lived_in):
    """It reads three files of the console's and writes none; what it writes lies in folders of its own."""
    files = found(lived_in, "f")
    assert {f"{HOME}/ingot.db", f"{HOME}/console-token"} <= set(files)
    assert any(path.startswith(f"{HOME}/backups/") for path in files)
    consoles = [path for path in files if path.split("/")[4] not in (*ENGINES_OWN, "serve.lock")]
    folders = [path for path in found(lived_in, "d") if path != HOME and path.split("/")[4] not in ENGINES_OWN]
    reached = inside(lived_in, "engine", TRY_FILES, consoles, [HOME, *folders])
    read = {f"reads {HOME}/{name}" for name in ENGINE_READS}
    assert set(reached) == read | {f"lists {HOME}/{name}" for name in ("active", "casts", "cache-packs")}


def test_the_console_reads_what_the_engine_wrote(lived_in):
    """All of it: logs, records, answers."""
    files = [path for path in found(lived_in, "f") if path.split("/")[4] in ENGINES_OWN]
    assert any(path.endswith("/engine.log") for path in files)
    assert {f"reads {path}" for path in files} <= set(inside(lived_in, "console", TRY_FILES, files, []))


def test_the_engine_reaches_neither_console_nor_gate(lived_in):
    """By no name and no address of theirs; nor does the console answer under that of the machine's bridges."""
    addresses = ["console", "console.pages", "gate", "tls", "host.docker.internal"]
    for service in ("console", "gate"):
        for network in lived_in.container(service)["NetworkSettings"]["Networks"].values():
            addresses += [network["IPAddress"], network["Gateway"]]
    for network in lived_in.container("engine")["NetworkSettings"]["Networks"].values():
        addresses.append(network["Gateway"])
    assert inside(lived_in, "engine", TRY_ADDRESSES, sorted({each for each in addresses if each})) == []
    assert inside(lived_in, "console", TRY_ADDRESSES, ["engine"]) == ["engine:8000"]


def test_what_the_engine_is_shown_does_not_open_the_console(lived_in):
    """It has seen the console's bearer with each request."""
    look = (
        "from appliance.home import Home; from console.access.token import token_header;"
        "print(token_header(Home.from_environment())['Authorization'])"
    )
    shown = lived_in.compose("exec", "-T", "console", "python", "-c", look).strip()
    headers = {"authorization": shown, "accept": "application/json"}
    answer = lived_in.browser.build_request("POST", "/profiles/-/roll-back", headers=headers)
    answer.headers.pop("cookie", None)
    assert lived_in.browser.send(answer).status_code == 401
