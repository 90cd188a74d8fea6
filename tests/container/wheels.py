"""Lends this machine's build of torch to `docker build`. Many an index has only the CUDA build, whose gigabytes an
image for the CPU does not need; where pip finds a smaller one here, the build gets it from here."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PORTS = [8765]  # the address is part of the build cache's key: the same one each time, as far as it is free
FETCH_S = 300


@contextmanager
def lent_torch() -> Iterator[dict[str, str]]:
    """The variables by which pip in a build finds it, while the body runs; none where somebody has set them, or where
    pip finds the CUDA build here, too."""
    if os.environ.get("PIP_EXTRA_INDEX_URL"):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="ingot-index-") as folder:
        index = Path(folder)
        if not _fetched(index / "torch"):
            yield {}
            return
        host = _bridge()
        serve = partial(_Quiet, directory=folder)
        try:
            server = http.server.ThreadingHTTPServer((host, PORTS[-1]), serve)
        except OSError:
            server = http.server.ThreadingHTTPServer((host, 0), serve)
            PORTS.append(server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {"PIP_EXTRA_INDEX_URL": f"http://{host}:{server.server_port}", "PIP_TRUSTED_HOST": host}
        finally:
            server.shutdown()
            server.server_close()


def _fetched(into: Path) -> bool:
    """Whether pip finds a torch for this machine that asks for nothing of NVIDIA's; it is in the folder then."""
    (pin,) = [line for line in (ROOT / "constraints.txt").read_text().split() if line.startswith("torch==")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), pin]
    subprocess.run(command, check=True, timeout=FETCH_S)
    (wheel,) = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        asked = archive.read(metadata).decode().splitlines()
    return not any(line.startswith(("Requires-Dist: nvidia-", "Requires-Dist: cuda-")) for line in asked)


def _bridge() -> str:
    """This machine's address as containers see it while they are built."""
    look = ["docker", "network", "inspect", "bridge"]
    (network,) = json.loads(subprocess.run(look, check=True, capture_output=True, timeout=60).stdout)
    address: str = network["IPAM"]["Config"][0]["Gateway"]
    return address


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Its folder listings are what pip takes for an index."""

    def log_message(self, *_: object) -> None:
        return None
