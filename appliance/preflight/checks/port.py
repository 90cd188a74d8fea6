"""The front door's address is free; if not, who is using it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity
from appliance.redaction import without_secrets


def run(subject: Subject) -> Iterator[Finding]:
    if subject.context.listen is None:
        return
    host, port = subject.context.listen
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as uvicorn binds
            probe.bind(address)
    except OSError as error:
        yield _finding(subject, host, port, error)


def _finding(subject: Subject, host: str, port: int, error: OSError) -> Finding:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        pid = _holder(port)
        if pid is not None and pid == _own_front_door(subject.context.home.lock):
            return Finding(
                id="port-held-by-ingot",
                severity=Severity.INFO,
                message=f"{where} is in use by this state folder's own `ingot serve` (process {pid}).",
                field="port",
                value=port,
                fix=Fix(text="Nothing to do: the next launch replaces it."),
            )
        holder = _name(pid) if pid is not None else "a process of another user"
        return Finding(
            id="port-in-use",
            severity=Severity.ERROR,
            message=f"{where} is in use by {holder}.",
            field="port",
            value=port,
            fix=Fix(
                text="End that process, or choose another port with --port.",
                command=f"kill {pid}" if pid is not None else f"ingot serve --port {port % 65535 + 1}",
            ),
            transient=True,
        )
    reasons = {
        errno.EACCES: ("needs privileges this process does not have", "Choose a port of 1024 or higher."),
        errno.EADDRNOTAVAIL: ("is not an address of this machine", "Use 127.0.0.1, or 0.0.0.0 for all addresses."),
    }
    what, remedy = reasons.get(error.errno or 0, (f"cannot be used: {error.strerror or error}", "Choose another."))
    return Finding(
        id="port-unavailable",
        severity=Severity.ERROR,
        message=f"{where} {what}.",
        field="port",
        value=port,
        fix=Fix(text=remedy),
    )


def _holder(port: int) -> int | None:
    """The process that listens on the port; None where the system does not tell this user."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return None
    listening = (c for c in connections if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port)
    return next((connection.pid for connection in listening if connection.pid), None)


def _name(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{without_secrets(' '.join(process.cmdline()))[:120] or process.name()} (process {pid})"
    except psutil.Error:
        return f"process {pid}"


def _own_front_door(lock: Path) -> int | None:
    """The process that the lock file of the state folder names."""
    try:
        owner = msgspec.json.decode(lock.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return owner.get("pid") if isinstance(owner, dict) else None
