"""`make bench-container`: how large the images and the bundle are, and how long their first token takes.

From images that are built: `docker compose up` on a new volume, a restart on another profile, and install.sh from a
bundle on a machine without a network. What cannot be measured here is said, and is no figure.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tempfile
import time
from functools import partial
from pathlib import Path

from tests import tiny
from tests.bench.table import Figure, conclude
from tests.container import airgap
from tests.container.airgap import DISK, AirGap
from tests.container.deployment import TAG, Deployment, build, run
from tests.running import INGOT, fetch, free_port, wait_for

RUNS = 3
ROLES = ("gate", "console", "engine")
GIGABYTE = 10**9
BUNDLED = "ingot-guide"
OTHER = "schema: 1\nname: small\nmodel: {path: small}\nmax-model-len: 128\n"
FLASHINFER = "import importlib.util as u; print(u.find_spec('flashinfer') is not None)"


def main() -> int:
    if "INGOT_TEST_TAG" not in os.environ:
        build()
    figures = [*sizes(), *deployed()]
    if (reason := airgap.why_not()) is None:
        figures += carried()
    else:
        print(f"Not measured: the air-gapped install. It {reason}.")
    print("Not measured: vLLM's published image, about 10 GB compressed by its registry, which cannot be asked here.")
    return conclude(figures)


def sizes() -> list[Figure]:
    """Of the images as `docker images` shows them: unpacked."""
    figures = [
        Figure("console_image_mb", "console image", [image_bytes(f"ingot-console:{TAG}") / 10**6], 250, "MB"),
        Figure("cpu_engine_image_gb", "engine image, cpu", [image_bytes(f"ingot-engine:{TAG}") / GIGABYTE], None, "GB"),
    ]
    for image in docker(
        "images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", "label=ingot.variant=cuda"
    ).split():
        arch, vllm = label(image, "ingot.arch"), label(image, "ingot.vllm") == "1"
        if not image.startswith(f"ingot-engine:{TAG}-"):
            continue
        flashinfer = docker("run", "--rm", "--entrypoint", "python", image, "-c", FLASHINFER).strip() == "True"
        goal = None if vllm else 6.5 if flashinfer else 5.5
        what = f"engine image, {arch}, {'with' if flashinfer else 'without'} FlashInfer{', with vLLM' if vllm else ''}"
        name = f"{arch}{'_flashinfer' if flashinfer else ''}{'_vllm' if vllm else ''}_engine_image_gb"
        figures.append(Figure(name, what, [image_bytes(image) / GIGABYTE], goal, "GB"))
    if len(figures) == 2:
        print(f"Not measured: a cuda engine. There is no image ingot-engine:{TAG}-<architecture>.")
    return figures


def deployed() -> list[Figure]:
    """`docker compose up` with nothing there to the first token; Activate to a token of the other profile."""
    up, restart = [], []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory(prefix="ingot-bench-", dir=DISK) as folder:
            deployment = Deployment(Path(folder))
            tiny.write_checkpoint(deployment.models / "small")
            try:
                started = time.perf_counter()
                deployment.compose("up", "--detach", "--no-build", timeout_s=240)
                wait_for("the first token", partial(generates, deployment.engine, BUNDLED), 120)
                up.append(time.perf_counter() - started)
                deployment.import_profile(OTHER)
                session = deployment.enter()
                started = time.perf_counter()
                answer = session.post("/profiles/small/activate", data={}, headers={"accept": "application/json"})
                assert answer.status_code == 200, answer.text
                wait_for("a token of the other profile", partial(generates, deployment.engine, "small"), 120)
                restart.append(time.perf_counter() - started)
            finally:
                deployment.compose("down", "--volumes", "--timeout", "5")
                deployment.browser.close()
    return [
        Figure("compose_up_first_token_s", "compose up to the first token, cpu", up, 12),
        Figure("profile_restart_s", "Activate to a token of the other profile", restart, 8),
    ]


def carried() -> list[Figure]:
    """The bundle against its parts, each compressed by itself, and its installation."""
    with tempfile.TemporaryDirectory(prefix="ingot-bench-", dir=DISK) as name:
        folder = Path(name)
        bundle = folder / "ingot.bundle"
        ingot("bundle", "key", str(folder / "bench"), "--no-password")
        ingot(
            *("bundle", "create", "--tag", TAG, "--sign", str(folder / "bench.key"), "--allow-stand-in"),
            *("--out", str(bundle)),
        )
        with tarfile.open(bundle) as members:
            held = {member.name: member.size for member in members}
            (folder / "install.sh").write_bytes(members.extractfile("install.sh").read())
        parts = sum(compressed_bytes(f"ingot-{role}:{TAG}") for role in ROLES)
        parts += sum(size for member, size in held.items() if not member.startswith("images/"))
        engine = held["images/engine.tar.zst"] / GIGABYTE
        took = installed(folder / "install.sh", bundle, folder / "bench.pub")
        return [
            Figure("airgapped_install_first_token_s", "install.sh to the first token, without a network", [took], 90),
            Figure("bundle_to_parts", "bundle against its compressed parts", [bundle.stat().st_size / parts], 1.1, "x"),
            Figure("cpu_engine_compressed_gb", "engine image in the bundle, cpu", [engine], None, "GB"),
        ]


def installed(script: Path, bundle: Path, public_key: Path) -> float:
    """Seconds from the call of install.sh to a token, on a new machine."""
    machine = AirGap()
    try:
        machine.start()
        console, engine = free_port(), free_port()
        ports = {"INGOT_CONSOLE_PORT": str(console), "INGOT_ENGINE_PORT": str(engine)}
        into = machine.folder / "ingot"
        command = ["sh", *map(str, (script, bundle, "--into", into, "--public-key", public_key, "--yes"))]
        started = time.perf_counter()
        done = machine.run(command, environment=ports, timeout_s=600)
        assert done.returncode == 0, done.stdout
        body = {"model": BUNDLED, "prompt": "Ingot", "max_tokens": 1}
        status, answer = machine.fetch(f"http://127.0.0.1:{engine}/v1/completions", body)
        assert status == 200, answer
        return time.perf_counter() - started
    finally:
        machine.stop()


def generates(engine: str, model: str) -> bool:
    return fetch(f"{engine}/v1/completions", {"model": model, "prompt": [5, 6, 7], "max_tokens": 1})[0] == 200


def image_bytes(image: str) -> int:
    return int(docker("image", "inspect", "--format", "{{.Size}}", image))


def label(image: str, name: str) -> str:
    labels: dict[str, str] = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", image))
    return labels.get(name, "")


def compressed_bytes(image: str) -> int:
    """As `docker save` writes the image, through zstd as it comes."""
    pipe = 'set -o pipefail; docker save "$0" | zstd --quiet --threads=0 | wc --bytes'
    return int(run(["bash", "-c", pipe, image], os.environ, timeout_s=300))


def docker(*arguments: str) -> str:
    return run(["docker", *arguments], os.environ)


def ingot(*arguments: str) -> None:
    run([*INGOT, *arguments], os.environ, timeout_s=600)


if __name__ == "__main__":
    sys.exit(main())
