"""What Docker's refusals mean and how to fix each. A refusal without a row is reported in Docker's own words."""

from __future__ import annotations

from typing import Final

from appliance.diagnosis.cause import Cause
from appliance.protocol import Finding, Fix, Severity

GPU_FAMILIES: Final = frozenset({"driver", "mig"})
"""Of the catalogue of diagnoses, those that Docker's own words can be of."""

ROWS: Final = (
    Cause(
        family="container",
        name="container-missing",
        signs=("no such container",),
        pattern=r"No such container: (?P<container>\S+)",
        summary="There is no container named {container}: somebody removed it, or it was never made.",
        fix="Make it and start it; its state and models are kept outside it.",
        command="docker compose up -d engine",
    ),
    Cause(
        family="container",
        name="port-taken",
        signs=("port is already allocated", "address already in use"),
        pattern=r"(?:Bind for |listen (?:tcp|udp)[46]? )(?P<address>\S+?:\d+)",
        summary="The engine's port is taken: something else listens on {address}.",
        fix="End it, or give the engine another port with INGOT_ENGINE_PORT in .env and make the container anew. This "
        "shows what listens.",
        command="ss -ltnp; docker ps --format '{{{{.Names}}}} {{{{.Ports}}}}'",
    ),
    Cause(
        family="container",
        name="mount-missing",
        signs=("bind source path does not exist", "error while creating mount source path"),
        pattern=r"(?:does not exist: |source path ')(?P<path>[^'\n]+?)'?(?::|$)",
        summary="The container cannot be started: {path}, which it has mounted, is not there.",
        fix="Mount that disk again or make the folder; if it is elsewhere now, correct INGOT_MODELS in .env and make "
        "the container anew.",
        command="docker compose up -d engine",
    ),
    Cause(
        family="container",
        name="mount-refused",
        signs=("error mounting",),
        pattern=r"error mounting \\?\"(?P<path>[^\"\\]+)",
        summary="The container cannot be started: {path} cannot be mounted into it.",
        fix="Look whether it is there, and whether it is a folder where one is wanted and a file where one is wanted.",
        command="docker compose config; ls -ld /",
    ),
    Cause(
        family="container",
        name="image-missing",
        signs=("no such image",),
        pattern=r"No such image: (?P<image>\S+)",
        summary="The container's image {image} is not on this machine any more.",
        fix="Load it again from the bundle, or build it, then make the container anew.",
        command="docker compose up -d engine",
    ),
    Cause(
        family="container",
        name="disk-full",
        signs=("no space left on device", "disk quota exceeded"),
        summary="Docker's disk is full, so the container cannot be started.",
        fix="Free some space where Docker keeps its data: this shows what takes it.",
        command="docker system df; df -h",
    ),
    Cause(
        family="container",
        name="network-missing",
        signs=("network",),
        pattern=r"network (?P<network>\S+) not found",
        summary="The network {network}, which the container was made for, was removed.",
        fix="Make network and container anew.",
        command="docker compose up -d --force-recreate",
    ),
    Cause(
        family="container",
        name="container-paused",
        signs=("paused container", "is paused"),
        summary="The container is paused: nothing in it runs until somebody lets it go on.",
        fix="Let it go on, or press Restart.",
        command="docker compose unpause engine",
    ),
    Cause(
        family="container",
        name="container-removing",
        signs=("marked for removal", "removal of container", "is dead"),
        summary="Docker is removing the container, or could not finish it.",
        fix="Make it anew; if Docker refuses that, restart Docker first.",
        command="docker compose up -d --force-recreate engine",
    ),
    Cause(
        family="container",
        name="command-missing",
        signs=("executable file not found", "unable to start container process"),
        pattern=r'exec: \\?"(?P<program>[^"\\]+)\\?": (?P<why>[^:"]+)',
        summary="The container's command {program} cannot be run ({why}): its image is not an engine's, or is damaged.",
        fix="Load the image again or build it, and make the container anew.",
        command="docker compose up -d --force-recreate engine",
    ),
    Cause(
        family="container",
        name="user-missing",
        signs=("unable to find user", "unable to find group"),
        pattern=r"unable to find (?P<who>(?:user|group) [^:]+)",
        summary="The container's image has no {who}: it is not an engine's, or was changed.",
        fix="Load the image again or build it, and make the container anew.",
        command="docker compose up -d --force-recreate engine",
    ),
    Cause(
        family="container",
        name="device-missing",
        signs=("error gathering device information",),
        pattern=r'custom device \\?"(?P<device>[^"\\]+)',
        summary="The device {device}, which the container was given, is not there.",
        fix="Load the GPU's driver or plug the device in, then press Start; to run without it, start without "
        "compose.gpu.yaml.",
        command="nvidia-smi -L",
    ),
    Cause(
        family="container",
        name="runtime-missing",
        signs=("unknown or invalid runtime name", "unknown runtime specified"),
        pattern=r"runtime (?:name: |specified )(?P<runtime>(?!nvidia)[^\s,]+)",
        summary="Docker has no runtime named {runtime} any more, which the container was made for.",
        fix="Register it in /etc/docker/daemon.json and restart Docker, or make the container anew without it.",
        command="docker info --format '{{{{.Runtimes}}}}'",
    ),
    Cause(
        family="container",
        name="container-limits",
        signs=("minimum memory limit", "cannot set memory limit", "unable to apply cgroup", "cgroup"),
        pattern=r"(?P<why>(?:minimum memory limit|cannot set|unable to apply)[^\n]{0,160})",
        summary="The container's limits cannot be set on this machine: {why}.",
        fix="Correct INGOT_ENGINE_MEMORY in .env and make the container anew.",
        command="docker compose up -d engine",
    ),
)  # fmt: skip


def problem_of(text: str, container: str) -> Finding:
    """What Docker said when it would not act on `container`. Its own words are the evidence."""
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
        message=f"Docker cannot do it with the container {container}: {text}.",
        fix=Fix(text="Its settings and its last error show what is meant.", command=f"docker inspect {container}"),
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
    """Nobody answered at DOCKER_HOST."""
    if host.startswith("tcp://"):
        return Finding(
            id="gate-unreachable",
            severity=Severity.ERROR,
            message=f"The gate, through which this console asks Docker, does not answer at {host}: {said}.",
            fix=Fix(
                text="The engine itself is not touched by that. Start the gate, or correct DOCKER_HOST.",
                command="docker compose up -d gate",
            ),
        )
    return Finding(
        id="docker-unreachable",
        severity=Severity.ERROR,
        message=f"Docker cannot be reached at {host}: {said}.",
        fix=Fix(
            text="Start Docker, let this user open its socket, or correct DOCKER_HOST.",
            command="systemctl status docker",
        ),
    )


def refused_by_gate(status: int, said: str) -> Finding:
    """The gate answered for Docker: 403 where it does not let the call through, 5xx where Docker did not answer it."""
    if status == 403:
        return Finding(
            id="gate-refused",
            severity=Severity.ERROR,
            message=f"The gate did not let the console's call through: {said}",
            fix=Fix(
                text="Gate and console must be of one release, and INGOT_ENGINE_CONTAINER must name the container that "
                "the gate is for.",
                command="docker compose up -d --force-recreate gate console",
            ),
        )
    return Finding(
        id="docker-unreachable",
        severity=Severity.ERROR,
        message="Docker does not answer the gate: it is being restarted, has ended, or the gate may not open its "
        "socket.",
        evidence=(said,),
        fix=Fix(
            text="Wait for Docker, or start it (`systemctl start docker`). If it runs already, it has made its socket "
            "anew and the gate holds the old one: restart the gate.",
            command="docker compose restart gate",
        ),
    )
