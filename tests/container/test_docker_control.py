"""The engine in a container of a real daemon, asked through the real gate: what every control promises, and what only
Docker does to a container. The engine is a script in the gate's image, so that no other is needed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.home import Home
from console.db import schema
from console.engine_control.base import EngineControlError
from console.engine_control.docker import DockerControl
from console.settings import ConsoleConfig
from tests.console.engine_promises import SCRIPT, EnginePromises, ended, has, kept, opened, shows, until
from tests.container import airgap as air_gap
from tests.container.airgap import ROOT, AirGap
from tests.container.deployment import ENGINE
from tests.container.missing import leave_out
from tests.running import wait_for

GATE = "gate"
# The gate listens in the namespace of its daemon; tests are outside.
RELAY = """
import asyncio, sys

async def copy(reader, writer):
    try:
        while block := await reader.read(65536):
            writer.write(block)
            await writer.drain()
    except ConnectionError:
        writer.transport.abort()
    finally:
        writer.close()

async def relay(reader, writer):
    try:
        there = await asyncio.open_connection("127.0.0.1", 2375)
    except OSError:
        return writer.close()
    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

async def main():
    server = await asyncio.start_unix_server(relay, sys.argv[1])
    await server.serve_forever()

asyncio.run(main())
"""
# Stands where NVIDIA's hook stands, and says what that says where the driver is too old.
HOOK = """\
#!/bin/sh
echo 'nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update your driver' >&2
exit 1
"""


class Site:
    """A daemon with the gate in front of it."""

    def __init__(self, tag: str) -> None:
        self.gap = AirGap()
        self.image = f"ingot-gate:{tag}"
        self.modes = self.gap.folder / "modes"
        self.modes.mkdir(mode=0o755)
        self.gate = self.gap.folder / "gate.sock"
        self.environ = {"DOCKER_HOST": f"unix://{self.gate}"}
        self._relay: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.gap.start()
        saved = subprocess.Popen(["docker", "save", self.image], stdout=subprocess.PIPE)
        subprocess.run(["docker", "load"], stdin=saved.stdout, env=self.gap.environment, check=True)
        assert saved.wait() == 0
        # With the rules of this checkout, whichever the image was made with.
        rules = f"{ROOT}/gate/haproxy.cfg:/etc/haproxy/haproxy.cfg:ro"
        mounts = ["--volume", rules, "--volume", f"{self.gap.socket}:/var/run/docker.sock"]
        confined = ["--user", "0:0", "--read-only", "--cap-drop", "ALL", "--restart", "unless-stopped"]
        self.gap.docker(
            "run", "--detach", "--name", GATE, "--publish", "127.0.0.1:2375:2375", *confined, *mounts, self.image
        )
        self.relay()
        wait_for("the gate answers", self._answers, 30, 0.1)

    def _answers(self) -> bool:
        request = b"GET /v1.44/info HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n\r\n"
        with socket.socket(socket.AF_UNIX) as there:
            there.connect(str(self.gate))
            there.sendall(request)
            return there.recv(64).startswith(b"HTTP/1.1 403")

    def relay(self) -> None:
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
        self.gate.unlink(missing_ok=True)
        self._relay = subprocess.Popen([*self.gap.enter(), sys.executable, "-c", RELAY, str(self.gate)])
        wait_for("the relay to the gate", self.gate.exists, 10)

    def end_daemon(self) -> None:
        """As `systemctl stop docker` does it: its containers end with it."""
        daemon = self.gap._daemon
        assert daemon is not None
        daemon.terminate()
        daemon.wait(60)

    def start_daemon(self) -> None:
        self.gap.start()
        self.relay()

    def create(self, *arguments: str) -> None:
        """The engine's container, not started."""
        self.remove()
        script = ["-c", SCRIPT, "engine", "/modes/next"]
        common = ["--name", ENGINE, "--init", "--entrypoint", "bash", "--volume", f"{self.modes}:/modes:ro"]
        # The gate's image has a check of its own, and Docker stands still for ever over one that begins in a pause.
        health = [] if "--health-cmd" in arguments else ["--no-healthcheck"]
        self.gap.docker("create", *common, *health, *arguments, self.image, *script)

    def remove(self) -> None:
        self.gap.run(["docker", "rm", "--force", ENGINE])

    def stop(self) -> None:
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
        self.gap.stop()


class ScriptedContainer:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.mode = site.modes / "next"
        self.mode.write_text("runs")
        self.control = DockerControl(ENGINE, site.environ)

    def kill(self) -> None:
        self.site.gap.docker("kill", ENGINE)


@pytest.fixture(scope="module")
def site(images: str) -> Iterator[Site]:
    if (reason := air_gap.why_not()) is not None:
        leave_out(reason)
    made = Site(images)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
async def engine(site):
    site.create()
    made = ScriptedContainer(site)
    yield made
    await made.control.close()
    site.remove()


@pytest.fixture
def config(home: Home, tmp_path: Path) -> ConsoleConfig:
    schema.migrate(home.database, tmp_path)
    return ConsoleConfig(home=home, engine_port=9, names=frozenset({"console.local"}))


class TestDocker(EnginePromises):
    """All of it, through the gate."""


async def test_a_removed_container_is_told_until_it_is_made_again(engine, config):
    """With the command; nothing has to be pressed in the console afterwards, and its new output is followed."""
    async with opened(config, engine.control) as read:
        await engine.control.start()
        await shows(read, "/", "starting", "the engine begins")
        engine.site.remove()
        await shows(read, "/", "no container named ingot-engine", "docker compose up -d engine")
        engine.mode.write_text("counts")
        engine.site.create()
        await engine.control.start()
        await shows(read, "/", "starting", "count ")


async def test_a_renamed_container_is_gone(engine, config):
    """Under its old name it is not there; renamed back it is."""
    await engine.control.start()
    async with opened(config, engine.control) as read:
        engine.site.gap.docker("rename", ENGINE, "other")
        await shows(read, "/", "no container named ingot-engine")
        engine.site.gap.docker("rename", "other", ENGINE)
        await shows(read, "/", "starting")


async def test_a_paused_container_is_told(engine, config):
    """Neither slow nor hung: paused, and how it goes on."""
    await engine.control.start()
    async with opened(config, engine.control) as read:
        engine.site.gap.docker("pause", ENGINE)
        await shows(read, "/", "is paused", "docker unpause ingot-engine")
        with pytest.raises(EngineControlError, match="paused"):
            await engine.control.start()
        await engine.control.restart()
        await shows(read, "/", "starting")


async def test_running_out_of_memory_is_told(engine, config):
    """The kernel killed a child; the parent ended as if all were well."""
    memory = "head -c 300m /dev/zero | tail; echo 'the parent ends'; exit 0"
    engine.site.remove()
    engine.site.gap.docker(
        *("create", "--name", ENGINE, "--init", "--memory", "40m", "--entrypoint", "bash"),
        *(engine.site.image, "-c", memory),
    )
    async with opened(config, engine.control) as read:
        await engine.control.start()
        await shows(read, "/", "failed", "40.0 MiB", "INGOT_ENGINE_MEMORY", "the parent ends")
    assert (await engine.control.status()).out_of_memory


async def test_a_loop_of_restarts_is_told_and_can_be_ended(engine, config):
    """Docker calls a container that waits for its next start running; it is not."""
    engine.site.create("--restart", "unless-stopped")
    engine.mode.write_text("fails")
    async with opened(config, engine.control) as read:
        await engine.control.start()
        await shows(read, "/", "failed", "(exit status 3)", "port 8123 is taken")
        await engine.control.stop()
        await shows(read, "/", "stopped")


async def test_a_restart_while_docker_restarts_it(engine):
    """Somebody presses Restart in the very moment in which Docker's own policy starts it: one engine runs."""
    engine.site.create("--restart", "always")
    engine.mode.write_text("fails")
    await engine.control.start()
    await until(lambda: ended(engine.control))
    engine.mode.write_text("runs")
    await engine.control.restart()
    await asyncio.sleep(1)
    status = await engine.control.status()
    assert status.running
    assert status.problem is None


async def test_health_is_told(engine, config):
    """As Docker sees it, beside what the front door says."""
    engine.site.create("--health-cmd", "false", "--health-interval", "200ms", "--health-retries", "1")
    await engine.control.start()
    async with kept(engine.control.events) as events:

        async def unhealthy() -> bool:
            return (await engine.control.status()).health == "unhealthy"

        await until(unhealthy)
        await until(lambda: _told(events, "unhealthy"))


async def _told(events: list, text: str) -> bool:
    return any(event.text == text for event in events)


async def test_a_machine_that_cannot_start_it_is_told(engine):
    """Docker's own refusals, each with its cause: to who pressed the button, and by the container that stays."""
    folder = engine.site.gap.folder / "models"
    folder.mkdir()
    engine.site.gap.docker("network", "create", "gone")
    cases = [
        (("--gpus", "all"), "NVIDIA container toolkit"),
        (("--mount", f"type=bind,source={folder},target=/models"), str(folder)),
        (("--network", "gone"), "gone"),
        (("--user", "nobody-here"), "user nobody-here"),
    ]
    for arguments, told in cases:
        engine.site.create(*arguments)
        if folder.exists() and str(folder) in " ".join(arguments):
            folder.rmdir()
        if "gone" in arguments:
            engine.site.gap.docker("network", "rm", "gone")
        with pytest.raises(EngineControlError, match=r"Docker|container") as caught:
            await engine.control.start()
        assert told in str(caught.value)
        assert caught.value.finding.fix.command
        problem = (await engine.control.status()).problem
        if problem is not None:  # some are found before the container is touched: then nothing of it stays
            assert told in problem.message


async def test_the_console_ends_while_streams_are_open(engine, config, tmp_path):
    """`ingot up` as it is in its container: SIGTERM to exit in seconds, with a quiet engine followed."""
    await engine.control.start()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INGOT_")}
    environment |= {"INGOT_HOME": str(config.home.root), "INGOT_ENGINE_CONTROL": "docker", **engine.site.environ}
    command = [sys.executable, "-m", "appliance.cli", "up", "--port", "0"]
    output = tmp_path / "up.log"
    with output.open("wb") as log:
        console = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
    try:
        await until(lambda: _says(output, "Set up"), 30)
        await asyncio.sleep(2)
        began = time.monotonic()
        console.send_signal(signal.SIGTERM)
        assert await console.wait() == 0
        assert time.monotonic() - began < 5
    finally:
        if console.returncode is None:
            console.kill()
    assert (await engine.control.status()).running


async def _says(output: Path, text: str) -> bool:
    return text in output.read_text()


async def test_a_daemon_that_restarts(engine, config):
    """Told while it lasts. Afterwards the engine is back as its policy says, and nobody had to do anything; of what it
    wrote nothing is lost or told twice. The last test but one, since the namespace is another one then."""
    engine.site.create("--restart", "unless-stopped")
    engine.mode.write_text("counts")
    await engine.control.start()
    async with opened(config, engine.control) as read, kept(engine.control.follow) as lines:
        await until(lambda: has(lines, "count 20"))
        engine.site.end_daemon()
        await shows(read, "/", "systemctl status docker")
        engine.site.start_daemon()  # not in a thread, whose end would be the daemon's
        await shows(read, "/", "starting", seconds=60)
        await until(lambda: has(lines, "the engine begins", 2), 60)
        await until(lambda: has(lines, "count 20 ", 0))
        await asyncio.sleep(1)
    texts = [line.text for line in lines]
    begins = [place for place, text in enumerate(texts) if text.startswith("the engine begins")]
    for run in (texts[: begins[1]], texts[begins[1] :]):
        counted = [int(text.split()[1]) for text in run if text.startswith("count ")]
        assert len(counted) > 10
        assert counted == list(range(1, len(counted) + 1))


async def test_a_driver_that_is_too_old_is_told(engine, config, monkeypatch):
    """With what NVIDIA's hook says, in the words of the runtime that ran it."""
    bin = engine.site.gap.folder / "bin"
    bin.mkdir()
    hook = bin / "nvidia-container-runtime-hook"
    hook.write_text(HOOK)
    hook.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    engine.site.remove()
    engine.site.end_daemon()
    engine.site.start_daemon()  # not in a thread, whose end would be the daemon's
    engine.site.create("--gpus", "all")
    assert shutil.which(hook.name)

    async def answers() -> bool:
        try:
            return (await engine.control.status()).problem is None
        except EngineControlError:
            return False

    await until(answers, 30)
    with pytest.raises(EngineControlError, match=re.escape("cuda>=13.0")):
        await engine.control.start()
    async with opened(config, engine.control) as read:
        await shows(read, "/", "failed", "cuda>=13.0", "Install a newer NVIDIA driver")
