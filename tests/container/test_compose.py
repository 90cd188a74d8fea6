"""What `docker compose up` promises on a machine without a GPU: real images, a real daemon. The tests build on each
other, in the order in which they stand."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.container.deployment import ENGINE, ROOT, Deployment, build_elsewhere
from tests.running import wait_for

SMALL = """\
schema: 1
name: small
model: {path: small}
max-model-len: 128
"""

# The console writes the models that it imports; the engine only reads them.
WRITABLE = {
    "engine": {"/var/lib/ingot"},
    "console": {"/var/lib/ingot", "/models"},
    "gate": {"/var/run/docker.sock"},
}


def _started(deployment: Deployment) -> str:
    started: str = deployment.container("engine")["State"]["StartedAt"]
    return started


def _wait_ready(deployment: Deployment, launch: str | None = None) -> None:
    def ready() -> bool:
        state = deployment.state()
        return state.get("state") == "ready" and launch in (None, state["launch"]["id"])

    wait_for("the engine is ready", ready, 90, 0.2)


def test_the_first_start_answers(deployment):
    """The bundled model answers on the published port, in the launch of the revision that the console made active."""
    assert deployment.ask("ingot-guide")
    launch = deployment.state()["launch"]
    assert (launch["profile"], launch["revision"]) == ("ingot-guide", "r1")


def test_the_set_up_link_is_in_the_log(deployment):
    """With the address that is published on this machine, not the container's own."""
    (link,) = deployment.setup_links()
    assert link.startswith(f"{deployment.console}/setup?code=")


@pytest.mark.parametrize("service", ["engine", "console", "gate"])
def test_containers_are_confined(deployment, service):
    """Nothing to write but what is listed and /tmp, no capability, no way to gain one, an init, limits, loopback only."""
    container = deployment.container(service)
    host = container["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["Init"]
    assert not host["Privileged"]
    # The console judges profiles by the memory that it sees: compose.yaml says why it has no limit.
    assert host["Memory"] > 0 or service == "console"
    assert host["PidsLimit"] > 0
    assert {port["HostIp"] for ports in host["PortBindings"].values() for port in ports} <= {"127.0.0.1"}
    writable = {mount["Destination"] for mount in container["Mounts"] if mount["RW"]}
    assert writable == WRITABLE[service]
    if service != "gate":
        assert container["Config"]["User"] == "ingot"


def test_only_the_gate_sees_docker(deployment):
    """Its socket is mounted nowhere else, and the engine's container has no network in common with the gate."""
    mounts = {
        service: [mount["Destination"] for mount in deployment.container(service)["Mounts"]]
        for service in ("engine", "console", "gate")
    }
    assert [service for service, paths in mounts.items() if "/var/run/docker.sock" in paths] == ["gate"]
    networks = {
        service: set(deployment.container(service)["NetworkSettings"]["Networks"]) for service in ("engine", "gate")
    }
    assert not networks["engine"] & networks["gate"]


def test_the_images_hold_what_they_need_only(deployment):
    """No torch in the console; no compiler in either; the environment has no pip."""
    look = (
        "import importlib.util as u, shutil as s; print(u.find_spec('torch'), *map(s.which, ('gcc', 'nvcc', 'ninja')))"
    )
    assert deployment.compose("exec", "-T", "console", "python", "-c", look).split() == ["None"] * 4
    assert deployment.compose("exec", "-T", "engine", "python", "-c", look).split()[-3:] == ["None"] * 3
    assert "pip" not in deployment.compose("exec", "-T", "engine", "ls", "/opt/venv/bin").split()


def test_the_console_opens(deployment):
    """The printed link makes the administrator; the dashboard says how to call the API from this machine."""
    deployment.set_up()
    dashboard = deployment.browser.get("/").text
    assert f"{deployment.engine}/v1" in dashboard
    assert "engine:8000" not in dashboard


def test_another_profile_restarts_the_container(deployment):
    """Activated on a page, it is a new launch in the same container, started anew, and its model answers."""
    before = deployment.container("engine")
    deployment.import_profile(SMALL)
    answer = deployment.activate("small")
    assert answer.status_code == 200, answer.text
    _wait_ready(deployment, answer.json()["launch"])
    deployment.ask("small")
    after = deployment.container("engine")
    assert after["Id"] == before["Id"]
    assert after["State"]["StartedAt"] > before["State"]["StartedAt"]


def test_a_profile_that_cannot_start_leaves_the_engine_alone(deployment):
    """Preflight runs in the engine's container; the refusal names the field, and nothing was restarted."""
    text = SMALL.replace("name: small", "name: missing").replace("path: small", "path: nowhere")
    deployment.import_profile(text)
    before = _started(deployment)
    answer = deployment.activate("missing")
    assert answer.status_code == 422
    assert "nowhere" in answer.text
    assert _started(deployment) == before
    deployment.ask("small")


def test_a_killed_engine_is_told_and_started_again(deployment):
    """`docker kill`: the page says that and how its process ended; its button brings the active revision back."""
    deployment.docker("kill", ENGINE)
    wait_for("the page tells", lambda: "killed by SIGKILL" in deployment.browser.get("/").text, 20, 0.2)
    assert deployment.browser.post("/engine/start").status_code == 200
    _wait_ready(deployment)
    assert deployment.state()["launch"]["profile"] == "small"


def test_an_engine_stopped_from_the_page_has_not_failed(deployment):
    """Stopped is what was asked for; start brings it back."""
    assert deployment.browser.post("/engine/stop").status_code == 200
    wait_for("the page tells", lambda: "is stopped" in deployment.browser.get("/").text, 20, 0.2)
    assert deployment.browser.post("/engine/start").status_code == 200
    _wait_ready(deployment)


def test_the_console_serves_without_the_gate(deployment):
    """It says that Docker cannot be reached, and still shows the engine, which it asks directly."""
    deployment.compose("stop", "gate")
    wait_for("the page tells", lambda: "Docker cannot be reached" in deployment.browser.get("/").text, 60, 0.5)
    assert deployment.state()["state"] == "ready"
    deployment.compose("start", "gate")
    wait_for("it is mended", lambda: "Docker cannot be reached" not in deployment.browser.get("/").text, 60, 0.5)


def test_state_outlives_the_containers(deployment):
    """After `down` and `up` the same profile is active, the administrator is still known, and no link is printed."""
    deployment.compose("down", "--timeout", "15")
    deployment.up()
    assert deployment.state()["launch"]["profile"] == "small"
    assert deployment.setup_links() == []
    assert deployment.browser.get("/").url.path == "/"


def test_a_code_change_installs_nothing_again(deployment, tmp_path):
    """Of this source with one file changed, every step that installs packages is taken from the cache."""
    for name in ("appliance", "console", "kernels", "migrations", "gate"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Dockerfile", ".dockerignore", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    with (tmp_path / "console" / "app.py").open("a") as file:
        file.write("# changed\n")
    told = build_elsewhere(tmp_path)
    installs = re.findall(r"^#(\d+) \[.*RUN .*pip .*install .*--requirement", told, re.M)
    assert len(installs) == 2
    assert [step for step in installs if f"#{step} CACHED" not in told] == []
