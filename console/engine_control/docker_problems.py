"""What Docker's errors mean and how to fix them. An error without a row is reported in Docker's own words."""

from __future__ import annotations

from typing import Final

from appliance.diagnosis.cause import Cause
from appliance.protocol import Finding, Fix, Severity

GPU_FAMILIES: Final = frozenset({"driver", "mig"})
"""Families of the diagnosis catalogue that Docker's errors can belong to."""

ROWS: Final = (
    Cause(
        family="container",
        name="container-missing",
        signs=("no such container",),
        pattern=r"No such container: (?P<container>\S+)",
        summary="There is no container named {container}: it was removed, or never created.",
        fix="Create it. Its state and models are kept outside it.",
        command="docker compose up -d engine",
    ),
    Cause(
        family="container",
        name="port-taken",
        signs=("port is already allocated", "address already in use"),
        pattern=r"(?:Bind for |listen (?:tcp|udp)[46]? )(?P<address>\S+?:\d+)",
        summary="The engine's port is in use: another program listens on {address}.",
        fix="End that program (this lists all listeners), or set another INGOT_ENGINE_PORT in .env and recreate the "
        "container.",
        command="ss -ltnp; docker ps --format '{{{{.Names}}}} {{{{.Ports}}}}'",
    ),
    Cause(
        family="container",
        name="mount-missing",
        signs=("bind source path does not exist", "error while creating mount source path"),
        pattern=r"(?:does not exist: |source path ')(?P<path>[^'\n]+?)'?(?::|$)",
        summary="The container cannot be started: its mount {path} does not exist.",
        fix="Mount that disk again or create the folder. If it has moved, correct INGOT_MODELS in .env. Then recreate "
        "the container.",
        command="docker compose up -d engine",
    ),
    Cause(
        family="container",
        name="mount-refused",
        signs=("error mounting",),
        pattern=r"error mounting \\?\"(?P<path>[^\"\\]+)",
        summary="The container cannot be started: {path} cannot be mounted into it.",
        fix="Check that it exists, and that it is a folder or a file as compose.yaml expects.",
        command="docker compose config; ls -ld /",
    ),
    Cause(
        family="container",
        name="image-missing",
        signs=("no such image",),
        pattern=r"No such image: (?P<image>\S+)",
        summary="The container's image {image} is no longer on this machine.",
        fix="Load it from the bundle or build it, then recreate the container.",
        command="docker compose up -d engine",
    ),
    Cause(
        family="container",
        name="disk-full",
        signs=("no space left on device", "disk quota exceeded"),
        summary="Docker's disk is full, so the container cannot be started.",
        fix="Free some space on the disk with Docker's data. This shows what uses it.",
        command="docker system df; df -h",
    ),
    Cause(
        family="container",
        name="network-missing",
        signs=("network",),
        pattern=r"network (?P<network>\S+) not found",
        summary="The container's network {network} has been removed.",
        fix="Recreate the network and the container.",
        command="docker compose up -d --force-recreate",
    ),
    Cause(
        family="container",
        name="container-paused",
        signs=("paused container", "is paused"),
        summary="The container is paused.",
        fix="Unpause it, or restart the engine.",
        command="docker compose unpause engine",
    ),
    Cause(
        family="container",
        name="container-removing",
        signs=("marked for removal", "removal of container", "is dead"),
        summary="Docker is removing the container, or failed to remove it.",
        fix="Recreate it. If Docker refuses, restart Docker first.",
        command="docker compose up -d --force-recreate engine",
    ),
    Cause(
        family="container",
        name="command-missing",
        signs=("executable file not found", "unable to start container process"),
        pattern=r'exec: \\?"(?P<program>[^"\\]+)\\?": (?P<why>[^:"]+)',
        summary="The container's command {program} cannot be run ({why}): its image is damaged or not an engine image.",
        fix="Load or build the image again, then recreate the container.",
        command="docker compose up -d --force-recreate engine",
    ),
    Cause(
        family="container",
        name="user-missing",
        signs=("unable to find user", "unable to find group"),
        pattern=r"unable to find (?P<who>(?:user|group) [^:]+)",
        summary="The container's image has no {who}: it is not an engine image, or was changed.",
        fix="Load or build the image again, then recreate the container.",
        command="docker compose up -d --force-recreate engine",
    ),
    Cause(
        family="container",
        name="device-missing",
        signs=("error gathering device information",),
        pattern=r'custom device \\?"(?P<device>[^"\\]+)',
        summary="The container's device {device} does not exist.",
        fix="Load the GPU driver or plug in the device, then start the engine. To run without it, start without "
        "compose.gpu.yaml.",
        command="nvidia-smi -L",
    ),
    Cause(
        family="container",
        name="runtime-missing",
        signs=("unknown or invalid runtime name", "unknown runtime specified"),
        pattern=r"runtime (?:name: |specified )(?P<runtime>(?!nvidia)[^\s,]+)",
        summary="Docker no longer has the container's runtime {runtime}.",
        fix="Register it in /etc/docker/daemon.json and restart Docker, or recreate the container without it.",
        command="docker info --format '{{{{.Runtimes}}}}'",
    ),
    Cause(
        family="container",
        name="container-limits",
        signs=("minimum memory limit", "cannot set memory limit", "unable to apply cgroup", "cgroup"),
        pattern=r"(?P<why>(?:minimum memory limit|cannot set|unable to apply)[^\n]{0,160})",
        summary="The container's limits cannot be set on this machine: {why}.",
        fix="Correct INGOT_ENGINE_MEMORY in .env and recreate the container.",
        command="docker compose up -d engine",
    ),
)  # fmt: skip


def problem_of(text: str, container: str) -> Finding:
    """Explain why Docker refused to act on `container`. Its own message is the evidence."""
    lowered = text.lower()
    for row in ROWS:
        groups = row.match(text, lowered)
        if groups is not None:
            return _finding(row, groups, text)
    from appliance.diagnosis.catalogue import causes_of  # hundreds of rows, compiled when there is something to explain

    for match in causes_of(text):
        if match.cause.family in GPU_FAMILIES and not match.cause.vague:
            return _finding(match.cause, match.groups, text)
    return Finding(
        id="docker-refused",
        severity=Severity.ERROR,
        message=f"Docker reported an error for the container {container}: {text}.",
        fix=Fix(text="Check its settings and its last error.", look=f"docker inspect {container}"),
    )


def _finding(row: Cause, groups: dict[str, str], text: str) -> Finding:
    return Finding(
        id=row.name,
        severity=Severity.ERROR,
        message=row.summary_for(groups),
        evidence=(f"Docker: {text}",),
        fix=row.fix_for(groups, {}),
    )


def unreachable(host: str, said: str) -> Finding:
    """Nothing answered at DOCKER_HOST."""
    if host.startswith("tcp://"):
        return Finding(
            id="gate-unreachable",
            severity=Severity.ERROR,
            message=f"The gate to Docker does not answer at {host}: {said}.",
            fix=Fix(
                text="The engine is not affected. Start the gate, or correct DOCKER_HOST.",
                command="docker compose up -d gate",
            ),
        )
    return Finding(
        id="docker-unreachable",
        severity=Severity.ERROR,
        message=f"Docker cannot be reached at {host}: {said}.",
        fix=Fix(
            text="Start Docker, give this user access to its socket, or correct DOCKER_HOST.",
            command="systemctl status docker",
        ),
    )


def refused_by_gate(status: int, said: str) -> Finding:
    """The gate answered instead of Docker: 403 if it denies the call, 5xx if Docker did not answer."""
    if status == 403:
        return Finding(
            id="gate-refused",
            severity=Severity.ERROR,
            message=f"The gate denied the console's request: {said}",
            fix=Fix(
                text="Gate and console must be the same release, and INGOT_ENGINE_CONTAINER must name the "
                "container that the gate allows.",
                command="docker compose up -d --force-recreate gate console",
            ),
        )
    return Finding(
        id="docker-unreachable",
        severity=Severity.ERROR,
        message="Docker does not answer the gate: it is restarting or has ended, or the gate has no access to its "
        "socket.",
        evidence=(said,),
        fix=Fix(
            text="Wait for Docker, or start it (`systemctl start docker`). If it is running, restart the gate: it "
            "still holds Docker's previous socket.",
            command="docker compose restart gate",
        ),
    )
