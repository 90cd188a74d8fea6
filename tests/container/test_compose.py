"""How the containers of compose.yaml are made: what they may, what they hold, and what a build of them does again."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from tests.bundle.carried_pack import written
from tests.container.deployment import ROOT, build_elsewhere

# The console writes the models that it imports; the engine only reads them.
WRITABLE = {
    "engine": {"/var/lib/ingot"},
    "console": {"/var/lib/ingot", "/models"},
    "gate": {"/var/run/docker.sock"},
}


@pytest.mark.parametrize("service", ["engine", "console", "gate"])
def test_containers_are_confined(deployment, service):
    """Nothing to write but what is listed and /tmp; no capability, no way to gain one, an init, limits, loopback."""
    container = deployment.container(service)
    host = container["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["Init"]
    assert not host["Privileged"]
    assert host["Memory"] > 0
    assert host["PidsLimit"] > 0
    assert {port["HostIp"] for ports in host["PortBindings"].values() for port in ports} <= {"127.0.0.1"}
    writable = {mount["Destination"] for mount in container["Mounts"] if mount["RW"]}
    assert writable == WRITABLE[service]
    if service != "gate":
        assert container["Config"]["User"] == {"engine": "ingot-engine", "console": "ingot"}[service]


def test_the_engine_finds_the_cache_packs_of_the_site(deployment, tmp_path):
    """In a folder that it cannot write; the console has no business there."""
    made = written(tmp_path)
    shutil.copytree(made.path, deployment.cache_packs / made.pack.name)
    try:
        [pack] = json.loads(deployment.compose("exec", "-T", "engine", "ingot", "cache", "list", "--json"))["packs"]
        assert (pack["path"], pack["files"]) == ("/cache-packs/chat-h100", len(made.pack.files))
        verified = deployment.compose(
            "exec", "-T", "engine", "sh", "-c", "ingot cache verify /cache-packs/chat-h100; test $? = 3"
        )
        assert "chat-h100" in verified
    finally:
        shutil.rmtree(deployment.cache_packs / made.pack.name)


def test_only_the_gate_sees_docker(deployment):
    """Its socket is mounted nowhere else, and of the others only the console has a network in common with the gate."""
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
    assert len(installs) == 4
    assert [step for step in installs if f"#{step} CACHED" not in told] == []
