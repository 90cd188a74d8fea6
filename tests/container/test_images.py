"""What is in the images, and what is not: looked at from inside, as the user that they run as, with a read-only root
and without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator

import pytest

from tests.container.deployment import BUILD_S, ROOT, run
from tests.running import wait_for

ROLES = ("engine", "console", "gate")
CONFINED = (
    "--network=none", "--read-only", "--tmpfs=/tmp:size=256m,mode=1777", "--cap-drop=ALL",
    "--security-opt=no-new-privileges:true", "--init",
)  # fmt: skip
COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "cpp", "as", "ld", "nvcc", "cicc", "ptxas", "ninja", "make")
FOUND = "for name in {}; do type -P $name; done; true"  # the path of each that there is
PACKAGES = "/opt/venv/lib/python3.11/site-packages"
MB, GB = 10**6, 10**9
CUDA = "ingot-engine:test-sm_90"


def inside(image: str, *command: str) -> str:
    """What a command prints in a container of its own."""
    entry, *arguments = command
    return run(["docker", "run", "--rm", *CONFINED, f"--entrypoint={entry}", image, *arguments], os.environ, "", 120)


def inspected(image: str) -> dict:
    (found,) = json.loads(run(["docker", "image", "inspect", image], os.environ))
    return found


def version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def cuda(images: str) -> str:
    """The engine for one architecture, with Triton's kernels: built on a machine that needs no GPU."""
    arguments = ("VARIANT=cuda", "ARCH=sm_90", "CAST=triton")
    command = ["docker", "build", "--target=engine", f"--tag={CUDA}", *(f"--build-arg={one}" for one in arguments), "."]
    run(command, os.environ, timeout_s=BUILD_S)
    return CUDA


def test_the_dockerfile_has_the_version_of_the_project():
    """The one default that it cannot read for itself."""
    (named,) = re.findall(r"^ARG VERSION=(\S+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert named == version()


@pytest.mark.parametrize("role", ROLES)
def test_labels_tell_what_it_is(images, role):
    """Those of the Open Container Initiative, and on an engine what it is built for."""
    labels = inspected(f"ingot-{role}:{images}")["Config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == version()
    for name in ("title", "description", "revision", "licenses"):
        assert labels[f"org.opencontainers.image.{name}"]
    told = {name: value for name, value in labels.items() if name.startswith("ingot.")}
    cpu = {"ingot.variant": "cpu", "ingot.arch": "", "ingot.vllm": "0", "ingot.vllm-compilers": "1"}
    assert told == (cpu if role == "engine" else {})


@pytest.mark.parametrize("role", ROLES)
def test_every_image_has_its_inventory(images, role):
    """A CycloneDX document in which each Debian package, each Python package and each vendored file of the console
    stands, and beside it a text for each licence."""
    image = f"ingot-{role}:{images}"
    document = json.loads(inside(image, "cat", "/usr/share/ingot/sbom.cdx.json"))
    assert document["bomFormat"] == "CycloneDX"
    urls = {component["purl"]: component for component in document["components"]}
    packages = inside(image, "dpkg-query", "--show", "--showformat", "${Package} ${Version}\n").splitlines()
    listed = {f"{component['name']} {component['version']}" for url, component in urls.items() if ":deb/" in url}
    assert listed == set(packages)
    kept = set(inside(image, "find", "/usr/share/ingot/licences", "-type", "f").split())
    folders = {path.rsplit("/", 1)[0] for path in kept}
    bare = [url for url, row in urls.items() if f"/usr/share/ingot/{row['properties'][0]['value']}" not in folders]
    assert bare == []
    if role == "gate":
        return
    records = inside(image, "sh", "-c", f"ls -d {PACKAGES}/*.dist-info").split()
    distributions = {url for url in urls if url.startswith("pkg:pypi/")}
    assert len(distributions) == len(records)
    assert {url.split("@")[0] for url in urls if url.startswith("pkg:npm/")} == {
        "pkg:npm/htmx.org", "pkg:npm/idiomorph", "pkg:npm/lucide-static", "pkg:npm/uplot",
    }  # fmt: skip


@pytest.mark.parametrize(("role", "user"), [("engine", "10002"), ("console", "10001")])
def test_nothing_compiles_or_installs_there(images, role, user):
    image = f"ingot-{role}:{images}"
    assert (
        inside(image, "bash", "-c", f"for name in {' '.join(COMPILERS)} pip pip3; do type -P $name; done; true") == ""
    )
    assert inside(image, "id", "--user").strip() == user


def test_the_console_has_nothing_of_the_engine(images):
    """No torch and none of what only the engine imports; less than 250 MB."""
    image = f"ingot-console:{images}"
    there = inside(image, "ls", PACKAGES).split()
    assert not {"torch", "triton", "numpy", "zmq", "faker", "pygments"} & set(there)
    assert inspected(image)["Size"] < 250 * MB


@pytest.mark.parametrize("role", ["engine", "console"])
def test_python_compiles_nothing_at_a_start(images, role):
    """The bytecode of every module is there and is not compared with its source: the root is read-only, and what a
    start compiled it would have to compile at the next one again."""
    look = (
        "import importlib.util as u, pathlib, sys\n"
        f"sources = [p for p in pathlib.Path('{PACKAGES}').rglob('*.py') if 'py312_' not in p.name]\n"
        "made = [pathlib.Path(u.cache_from_source(p)) for p in sources]\n"
        "flags = [m.read_bytes()[4] if m.exists() else None for m in made]\n"
        "print(len(sources), [str(s) for s, flag in zip(sources, flags) if flag != 1][:5])"
    )
    count, rest = inside(f"ingot-{role}:{images}", "python", "-c", look).strip().split(" ", 1)
    assert int(count) > 1000
    assert rest == "[]"


def test_the_gate_can_check_a_signature(images):
    """install.sh borrows its minisign on a host that has none."""
    image = f"ingot-gate:{images}"
    assert inside(image, "minisign", "-v").startswith("minisign")
    assert inside(image, "haproxy", "-v").startswith("HAProxy")
    assert inspected(image)["Size"] < 120 * MB


def test_every_page_opens(deployment):
    """Nothing that was left out of the console is missed by a page, nor by the commands that people run there."""
    browser = deployment.enter()
    paths = (
        "/",
        "/profiles",
        "/launches",
        "/log",
        "/models",
        "/hardware",
        "/playground",
        "/benchmarks",
        "/access",
        "/backups",
    )
    assert {path: browser.get(path).status_code for path in paths} == dict.fromkeys(paths, 200)
    for command in (
        "profile list",
        "launches list",
        "logs",
        "hardware",
        "check",
        "explain",
        "backup list",
        "bundle --help",
    ):
        deployment.compose("exec", "-T", "console", "ingot", *command.split())


def test_a_cuda_engine_is_small_and_compiles_nothing(cuda):
    """Without FlashInfer less than 5.5 GB; the cast cannot be written, and nothing is there that could make another."""
    assert inspected(cuda)["Size"] < 5.5 * GB
    labels = inspected(cuda)["Config"]["Labels"]
    assert (labels["ingot.variant"], labels["ingot.arch"]) == ("cuda", "sm_90")
    assert inside(cuda, "bash", "-c", FOUND.format(" ".join(COMPILERS))) == ""
    named = " -o ".join(f"-name {name}" for name in ("nvcc", "ptxas", "ptxas-blackwell", "cicc", "ninja", "cc1*"))
    assert inside(cuda, "bash", "-c", rf"find / -xdev -type f \( {named} \) 2>/dev/null; true") == ""
    assert inside(cuda, "bash", "-c", "test -w /opt/ingot/cast || echo no").strip() == "no"


def test_a_cuda_engine_has_its_cast(cuda):
    """`ingot verify` finds every kernel by the key that a launch there computes."""
    assert "COMPLETE: /opt/ingot/cast (sm_90)" in inside(cuda, "ingot", "verify")


@pytest.fixture
def without_a_driver(cuda: str) -> Iterator[str]:
    """The name of a container of the cuda engine on this machine, which has no driver that it could see."""
    name = "ingot-test-without-a-driver"
    published = "--env=INGOT_PUBLISHED_ADDRESS=127.0.0.1"  # nowhere, so no key is needed
    run(["docker", "run", "--detach", f"--name={name}", published, *CONFINED, cuda], os.environ)
    yield name
    run(["docker", "rm", "--force", "--volumes", name], os.environ)


def test_a_sealed_start_without_a_driver_is_told(without_a_driver):
    """Preflight says so in the container's log and in the engine's state, with what to do; nobody sees a traceback."""
    look = (
        "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000); c.request('GET', '/appliance/state');"
        "print(c.getresponse().read().decode())"
    )

    def state() -> dict:
        asked = subprocess.run(
            ["docker", "exec", without_a_driver, "python", "-c", look], capture_output=True, text=True, check=False
        )
        return json.loads(asked.stdout) if asked.returncode == 0 else {}

    wait_for("the start ends", lambda: state().get("state") == "failed", 60, 0.5)
    assert "sealed-without-gpu" in json.dumps(state())
    told = subprocess.run(["docker", "logs", without_a_driver], capture_output=True, text=True, check=True)
    log = told.stdout + told.stderr
    assert "sealed-without-gpu" in log
    assert "Traceback" not in log
