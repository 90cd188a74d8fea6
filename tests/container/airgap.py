"""A machine without a network: a Docker daemon of its own in a network namespace that holds nothing but a loopback,
and commands that run in the same namespace. Nothing that runs there can send a packet to anywhere else."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.running import wait_for

ROOT = Path(__file__).resolve().parents[2]
STARTS_S = 60
# On disk, also where /tmp is memory: the images are copied here once more.
DISK = os.environ.get("TMPDIR", "/var/tmp")
NEEDED = ("docker", "dockerd", "unshare", "nsenter", "setpriv", "ip")
# Both as they stand: the daemon dies with who started it, and a shell is left only for what must come first.
DAEMON = """\
ip link set lo up
exec setpriv --pdeathsig TERM dockerd "$@"
"""
FETCH = """\
import json, sys
from tests.running import fetch
print(json.dumps(fetch(*json.loads(sys.argv[1]))))
"""


def why_not() -> str | None:
    """What keeps this machine from having one."""
    if os.geteuid() != 0:
        return "needs root: it makes a network namespace with a Docker daemon in it"
    absent = [name for name in NEEDED if shutil.which(name) is None]
    return f"needs {', '.join(absent)} on this machine" if absent else None


class AirGap:
    """`docker_host` is the daemon's address, `environment` one in which `docker` speaks to it, `folder` a place for
    files of the test; all of it goes with stop()."""

    def __init__(self) -> None:
        # containerd takes the name as that of a namespace, which may not end as those of tempfile may.
        self.folder = Path(DISK, f"ingot-airgap-{secrets.token_hex(4)}")
        self.folder.mkdir(mode=0o700)
        self.socket = self.folder / "docker.sock"
        self.docker_host = f"unix://{self.socket}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("INGOT_", "DOCKER_"))}
        self.environment = {**kept, "DOCKER_HOST": self.docker_host, "PYTHONPATH": str(ROOT)}
        self._log = self.folder / "dockerd.log"
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until the daemon answers. The namespace is new with each start; images and volumes stay."""
        # Where the machine has a containerd, dockerd uses that one: then its own namespace there keeps it apart.
        own = self.folder.name
        arguments = [
            *("--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "exec")),
            *("--pidfile", str(self.folder / "dockerd.pid"), "--host", self.docker_host),
            *("--containerd-namespace", own, "--containerd-plugins-namespace", f"{own}-plugins"),
        ]
        with self._log.open("ab") as log:
            self._daemon = subprocess.Popen(
                ["unshare", "--net", "sh", "-euc", DAEMON, "sh", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for("the air-gapped Docker daemon answers", self._answers, STARTS_S, 0.2)

    def stop(self) -> None:
        """End the daemon and every container of its, and take away what they wrote."""
        if self._answers():
            containers = self.docker("ps", "--all", "--quiet").split()
            if containers:
                self.docker("rm", "--force", "--volumes", *containers)
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(60)
        shutil.rmtree(self.folder)

    def run(
        self,
        command: Sequence[str | Path],
        *,
        text: str | None = None,
        environment: Mapping[str, str] = {},
        folder: Path | None = None,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the namespace, whatever it returns; `text` is its input, and what it says on stderr comes
        with stdout."""
        return subprocess.run(
            [*self.enter(), *map(str, command)],
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.environment, **environment},
            cwd=folder or self.folder,
            timeout=timeout_s,
        )

    def enter(self) -> list[str]:
        """The words before a command that take it into the namespace. Not `ip netns exec`: that hides what is mounted
        under /sys, where Docker finds its control groups."""
        assert self._daemon is not None, "not started"
        return ["nsenter", "--target", str(self._daemon.pid), "--net"]

    def docker(self, *arguments: str, timeout_s: float = 120) -> str:
        """What `docker ARGUMENTS` printed. It must succeed."""
        done = self.run(["docker", *arguments], timeout_s=timeout_s)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout}"
        return done.stdout

    def fetch(self, url: str, body: Any = None) -> tuple[int, Any]:
        """tests.running.fetch, asked from within: status and JSON, (0, None) when nobody answers."""
        done = self.run([sys.executable, "-c", FETCH, json.dumps([url, body])])
        status, answer = json.loads(done.stdout)
        return status, answer

    def links(self) -> set[str]:
        """The network interfaces of the namespace: Docker's bridges and their ends, and the loopback."""
        done = self.run(["ip", "-json", "link", "show"])
        return {link["ifname"] for link in json.loads(done.stdout)}

    def program(self, path: str) -> Path:
        """A script that runs the program at `path` in the namespace, for those who want one file: a browser's, say."""
        script = self.folder / f"within-{Path(path).name}"
        script.write_text(f'#!/bin/sh\nexec {" ".join(self.enter())} {path} "$@"\n')
        script.chmod(0o755)
        return script

    def _answers(self) -> bool:
        if self._daemon is None or not self.socket.exists():
            return False
        assert self._daemon.poll() is None, f"dockerd ended:\n{self._log.read_text()[-3000:]}"
        return self.run(["docker", "version", "--format", "{{.Server.Version}}"]).returncode == 0
