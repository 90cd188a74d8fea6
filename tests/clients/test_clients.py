"""Foreign clients against the native engine, each as a program of its own: `make test-clients`.

INGOT_CLIENTS names the folder of `install.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.install import PYTHON
from tests.clients.tool_model import NAME, write_tool_model
from tests.manual import Block, blocks
from tests.running import engine, fetch, wait_for

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("INGOT_CLIENTS", ""))
FUZZ_SECONDS = int(os.environ.get("INGOT_FUZZ_SECONDS", "60"))
pytestmark = [
    pytest.mark.skipif("INGOT_CLIENTS" not in os.environ, reason="make test-clients installs them"),
    pytest.mark.timeout(900 + FUZZ_SECONDS),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("clients") / "home"
    write_tool_model(home / "models" / "guide")
    profile = home / "profile.json"
    settings = {
        "dtype": "float32",
        "max-num-seqs": 8,
        "max-model-len": 4096,
        "response-store": 100,
        "sampling-defaults": {"temperature": 0},
    }
    profile.write_text(json.dumps({"schema": 1, "name": NAME, "model": {"path": "guide"}, **settings}))
    with engine(home, "--profile", str(profile)) as (_, url):
        wait_for("the engine is ready", lambda: fetch(f"{url}/health")[0] == 200)
        yield url


def installed(name: str) -> Path:
    log = FOLDER / f"{name}.log"
    if not (FOLDER / name / ".installed").exists():
        pytest.skip(f"{name} is not installed: {log.read_text()[-300:] if log.exists() else 'see install.py'}")
    return FOLDER / name


def run(command: list[str], url: str, cwd: Path) -> str:
    environment = {**os.environ, "INGOT_URL": url, "NO_PROXY": "127.0.0.1", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=800 + FUZZ_SECONDS)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


@pytest.mark.parametrize("name", PYTHON)
def test_a_client_in_python(url: str, tmp_path: Path, name: str) -> None:
    python = installed(name) / "bin" / "python"
    apart = ["--noconftest", "-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    said = run([str(python), "-m", "pytest", "-q", *apart, str(HERE / f"{name}_client.py")], url, tmp_path)
    assert int(re.search(r"(\d+) passed", said)[1]) > 0


def test_vercels_ai_sdk(url: str) -> None:
    """node finds packages beside the program that asks for them."""
    folder = installed("node")
    program = shutil.copy(HERE / "ai_sdk.test.mjs", folder)
    said = run(["node", "--test", "--test-reporter=tap", str(program)], url, folder)
    assert int(re.search(r"# pass (\d+)", said)[1]) > 0


@pytest.mark.parametrize("block", [block for block in blocks() if block.client], ids=lambda block: f"line {block.line}")
def test_an_example_of_the_manual_prints_an_answer(url: str, tmp_path: Path, block: Block) -> None:
    folder = installed(block.client)
    if block.language == "typescript":
        program = folder / "example.mjs"  # TypeScript without types is JavaScript
        program.write_text(block.asking(url))
        said = run(["node", str(program)], url, folder)
    else:
        said = run([str(folder / "bin" / "python"), "-c", block.asking(url)], url, tmp_path)
    assert said.startswith("Sealed means")
