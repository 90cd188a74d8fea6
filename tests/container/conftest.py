"""What the tests of this folder share, in the order in which they stand: the images, one deployment of them, and one
machine without a network. `make test-containers` asks for them: they need Docker and its base images."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiny
from tests.container import airgap as air_gap
from tests.container import egress
from tests.container.airgap import AirGap
from tests.container.deployment import BUILD_S, ENGINE, TAG, Deployment, build
from tests.container.egress import EgressCounter
from tests.container.missing import leave_out


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first visit comes first: it needs a console that nobody has set up. The first test waits for the build."""
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.is_relative_to(here) and item.path.name != "test_visit.py")
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILD_S + 600))


@pytest.fixture(scope="session")
def docker() -> None:
    """A daemon that is ours to use. Nobody asked for these tests: skipped. Asked for, and no daemon: failed."""
    if os.environ.get("INGOT_CONTAINER_TESTS") != "1":
        pytest.skip("builds images and starts containers: `make test-containers` runs it")
    if shutil.which("docker") is None:
        pytest.fail("there is no `docker` command: tests/container/with-docker.sh installs it")
    asked = subprocess.run(["docker", "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True)
    if asked.returncode != 0:
        pytest.fail(f"no Docker daemon answers: {asked.stderr.strip()}")
    if ENGINE in asked.stdout.split():
        pytest.fail(f"another Ingot has the container {ENGINE} on this daemon: `docker compose down` it first")


@pytest.fixture(scope="session")
def images(docker: None) -> str:
    """The tag of the engine, the console and the gate, built from this checkout. INGOT_TEST_TAG names images that are
    there already, for whoever works on a test: then nothing is built."""
    if "INGOT_TEST_TAG" not in os.environ:
        build()
    return TAG


@pytest.fixture(scope="session")
def deployment(images: str) -> Iterator[Deployment]:
    """Started on an empty volume, with one small model in the models folder."""
    with tempfile.TemporaryDirectory(prefix="ingot-deployment-") as folder:
        made = Deployment(Path(folder))
        tiny.write_checkpoint(made.models / "small")
        for path in (made.models / "small").rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        try:
            made.create()
            made.egress = None if egress.why_not() else EgressCounter(made.networks())
            made.up()
            yield made
        finally:
            if made.egress is not None:
                made.egress.close()
            made.compose("down", "--volumes", "--timeout", "5")
            made.browser.close()


@pytest.fixture(scope="session")
def airgap(docker: None) -> Iterator[AirGap]:
    """A daemon without an image, in a network namespace with nothing but a loopback."""
    if (reason := air_gap.why_not()) is not None:
        leave_out(reason)
    made = AirGap()
    try:
        made.start()
        yield made
    finally:
        made.stop()
