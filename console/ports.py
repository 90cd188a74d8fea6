"""Takes a port before anything else is started, and says who holds it when that fails."""

from __future__ import annotations

import socket

import psutil


class PortTakenError(Exception):
    """The port cannot be had; the text names its holder and the flag that chooses another."""


def take(host: str, port: int, flag: str) -> socket.socket:
    """A socket bound to host and port, not yet listening."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((host, port))
        taken.listen(128)
    except OSError as error:
        taken.close()
        raise PortTakenError(_why(host, port, flag, error)) from error
    taken.setblocking(False)
    return taken


def free(host: str, port: int, flag: str) -> None:
    """Raises PortTakenError unless another process could take the port now."""
    take(host, port, flag).close()


def _why(host: str, port: int, flag: str, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"This user may not use port {port}. Choose one of 1024 or above with {flag}."
    holder = _holder(port)
    if holder:
        return f"Port {port} is in use by {holder}. Stop that, or choose another port with {flag}."
    return f"{host}:{port} cannot be used: {error.strerror or error}. Choose another port with {flag}."


def _holder(port: int) -> str:
    """`python (process 4711)`; empty where this user may not know."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return ""
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            if connection.pid is None:
                return "another user's process"
            try:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
            except psutil.NoSuchProcess:
                return f"process {connection.pid}"
    return ""
