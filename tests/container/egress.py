"""Counts what containers send to anywhere but their own networks: in this machine's kernel, where a packet arrives from
a container's bridge and before any rule could drop it. A name that is looked up elsewhere counts, too."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

CHAIN = ("iptables", "--wait", "--table", "raw")


def why_not() -> str | None:
    """What keeps this machine from counting."""
    if os.geteuid() != 0:
        return "needs root: it counts packets in the kernel"
    return None if shutil.which("iptables") else "needs iptables on this machine"


@dataclass(frozen=True)
class Network:
    """A Docker network's bridge on this machine, and the addresses that are its own."""

    bridge: str
    subnet: str

    @property
    def rule(self) -> list[str]:
        return ["PREROUTING", "--in-interface", self.bridge, "!", "--destination", self.subnet]


class EgressCounter:
    """Counts from the moment it is made until close()."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)
        for network in self._networks:
            _run(*CHAIN, "--append", *network.rule)

    def packets(self) -> int:
        """How many have tried to leave."""
        printed = _run("iptables-save", "--counters", "--table", "raw")
        bridges = "|".join(re.escape(network.bridge) for network in self._networks)
        return sum(
            int(count) for count in re.findall(rf"^\[(\d+):\d+\] -A PREROUTING .*-i (?:{bridges})\b", printed, re.M)
        )

    def close(self) -> None:
        for network in self._networks:
            _run(*CHAIN, "--delete", *network.rule)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
