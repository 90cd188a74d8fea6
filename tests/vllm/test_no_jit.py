"""`jit: forbid`: what counts as compiling, how it is named, and that it ends a launch, asked for by Python or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from appliance.vllm.no_jit import hook
from tests.vllm.real import PROFILE, front_door
from tests.vllm.stand_in import SCRIPT, install

FORBIDS = PROFILE | {"jit": "forbid"}


@pytest.mark.parametrize(
    "command",
    [
        ["nvcc", "-c", "kernel.cu", "-o", "kernel.o"],
        ["/usr/local/cuda/bin/ptxas", "-lineinfo", "--gpu-name=sm_90a", "/tmp/x.ptx", "-o", "/tmp/x.o"],
        ["/usr/bin/x86_64-linux-gnu-g++-12", "x.cpp", "-shared", "-o", "x.so"],
        ["sh", "-c", "cd /tmp && CUDA_HOME=/usr nvcc -c kernel.cu"],
        ["bash", "-e", "-c", "g++ x.cpp"],
        ["env", "CC=gcc", "nice", "-n", "5", "gcc", "-x", "c", "-"],
        ["clang-19", "-O2", "main.c"],
        ["/opt/triton/bin/ptxas-blackwell", "--gpu-name=sm_100a", "/tmp/x.ptx", "-o", "/tmp/x.o"],
        ["nvcc", "--options-file", "arguments"],
        ["g++", "@arguments"],
        ["gcc", "-x", "c", "/dev/stdin"],
        ["bash", "-lc", "gcc x.c"],
        ["sh", "-o", "errexit", "-ec", "gcc x.c"],
        ["sh", "-c", "exec gcc x.c"],
        ["sh", "-c", "set -e\nnvcc -c x.cu"],
        ["sh", "-c", "if test -f x.c; then { gcc x.c; }; fi"],
        ["sh", "-c", "echo `gcc x.c`"],
        ["timeout", "-k", "5", "10m", "gcc", "x.c"],
        ["nohup", "gcc", "x.c"],
    ],
    ids=" ".join,
)
def test_compiling(command):
    tool, arguments = hook.tool_of(command)
    assert tool in hook.COMPILERS
    assert hook.compiles(arguments)


@pytest.mark.parametrize(
    "command",
    [
        ["nvcc", "--version"],
        ["gcc", "-print-search-dirs"],
        ["g++", "-dM", "-E", "-x", "c++", "/dev/null"],
        ["ptxas", "--version"],
        ["g++", "-v"],
        ["gcc", "-march=native", "-Q", "--help=target"],
        ["nvcc", "--list-gpu-arch"],
        ["gcc", "-Wl,-t", "-o", "/tmp/x", "-lnccl"],  # as `ctypes.util.find_library` does
    ],
    ids=" ".join,
)
def test_a_question_is_no_compiling(command):
    _, arguments = hook.tool_of(command)
    assert not hook.compiles(arguments)


@pytest.mark.parametrize(
    "command",
    [
        ["ldconfig", "-p"],
        ["sh", "-c", "echo nvcc -c x.cu"],
        ["sh", "-c", "command -v gcc g++"],
        ["clang-format", "x.c"],
        ["x86_64-linux-gnu-gcc-ar-12", "x.o"],
        ["bash", "-x", "gcc.sh", "-c"],
        ["python", "nvcc.py", "-c"],
        [],
        ["sh", "-c", "echo 'open"],
    ],
    ids=str,
)
def test_other_programs_are_let_run(command):
    assert hook.tool_of(command) is None


def run_hooked(tmp_path: Path, code: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """In a Python of its own, as a launch sets it up; what it reported."""
    folder = tmp_path / "python"
    folder.mkdir()
    (folder / "sitecustomize.py").write_bytes(Path(hook.__file__).read_bytes())
    report = tmp_path / "report"
    environment = os.environ | {"PYTHONPATH": str(folder), hook.REPORT: str(report)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    return done, report.read_text() if report.exists() else ""


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess; subprocess.run(['g++', 'x.cpp'])",
        "import subprocess; subprocess.run('cd / && g++ x.cpp', shell=True)",
        "import subprocess; subprocess.check_output(b'nvcc', shell=False) if 0 else subprocess.Popen([b'cc', b'x.c'])",
        "import os; os.system('gcc x.c')",
        "import os; os.execvp('gcc', ['gcc', 'x.c'])",
        "import os; os.posix_spawn('/usr/bin/gcc', ['gcc', 'x.c'], {})",
        "import os; os.execv('/usr/bin/gcc', ['harmless', 'x.c'])",
        "import subprocess; subprocess.run(['harmless', 'x.c'], executable='/usr/bin/gcc')",
        "import os, subprocess\nif os.fork(): os.wait()\nelse: subprocess.run(['cc', 'x.c'])",
    ],
)  # fmt: skip
def test_a_python_process_starts_no_compiler(tmp_path, code):
    done, reported = run_hooked(tmp_path, code)
    assert "CompilationForbidden" in done.stderr
    assert " was to be run for unknown code: " in reported


def test_a_python_process_finds_libraries(tmp_path):
    done, reported = run_hooked(tmp_path, "import ctypes.util; print(ctypes.util.find_library('of-nobody'))")
    assert (done.stdout, reported) == ("None\n", "")


def test_it_names_the_kernel_of_triton(tmp_path):
    place = tmp_path / "site-packages" / "triton" / "compiler"
    place.mkdir(parents=True)
    (place / "compiler.py").write_text(
        "import subprocess\ndef compile(src):\n    subprocess.run(['ptxas', '/tmp/a.ptx', '-o', '/tmp/a.o'])\n"
    )
    code = f"""
import sys
sys.path.insert(0, {str(place)!r})
from types import SimpleNamespace
import compiler
def _fwd_kernel(): pass
compiler.compile(SimpleNamespace(fn=_fwd_kernel))
"""
    _, reported = run_hooked(tmp_path, code)
    assert "the Triton kernel _fwd_kernel" in reported


def test_the_sitecustomize_behind_it_runs_too(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('the other one')\n")
    folder = tmp_path / "python"
    folder.mkdir()
    (folder / "sitecustomize.py").write_bytes(Path(hook.__file__).read_bytes())
    environment = os.environ | {"PYTHONPATH": f"{folder}:{other}"}
    code = "import subprocess; subprocess.run(['cc', 'x.c'])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "the other one\n"
    assert "CompilationForbidden" in done.stderr


def test_ninja_may_find_that_nothing_is_to_be_built(tmp_path, monkeypatch):
    """FlashInfer runs it for every module it loads."""
    program = tmp_path / "ninja"
    program.write_text('#!/bin/sh\n[ "$1" = -n ] && cat said\n')
    program.chmod(0o755)
    (tmp_path / "said").write_text("ninja: no work to do.\n")
    assert not hook.builds(str(program), ["-C", "x"], str(tmp_path))
    (tmp_path / "said").write_text("[1/2] nvcc -c a.cu\n")
    assert hook.builds(str(program), ["-C", "x"], str(tmp_path))
    assert not hook.builds(str(program), ["--version"], str(tmp_path))


@pytest.mark.parametrize(
    "behaviour",
    [
        {"compiles": ["g++", "-shared", "a.cpp", "-o", "a.so"]},
        {"compiles_unseen": ["-c", "import time; time.sleep(600)", "a.cu"]},
    ],
    ids=["Python", "another program"],
)
def test_a_launch_ends_and_names_it(tmp_path: Path, behaviour: dict[str, Any]) -> None:
    program = install(tmp_path / "stand-in")
    variables = {"FAKE_VLLM": json.dumps(behaviour)}
    with front_door(tmp_path, FORBIDS, str(program), **variables) as engine:
        state = engine.wait("failed", timeout_s=30)
    diagnosis = state["launch"]["diagnosis"]
    assert (diagnosis["family"], diagnosis["fix"]["patch"]) == ("compile", {"jit": "allow"})
    [tool] = {word for word in ("g++", "nvcc") if word in diagnosis["summary"]}
    assert tool == ("g++" if "compiles" in behaviour else "nvcc")


DROPS = f"""#!{sys.executable}
import os, subprocess, sys
command = [{sys.executable!r}, {str(SCRIPT)!r}, *sys.argv[1:]]
kept = {{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}}
"""


@pytest.mark.parametrize(
    "wrapper",
    [
        f'#!/bin/sh\nPYTHONPATH= exec {sys.executable} {SCRIPT} "$@"\n',
        DROPS + "os.execve(command[0], command, kept)\n",
        DROPS + "sys.exit(subprocess.run(command, env=kept).returncode)\n",
    ],
    ids=["a shell", "a Python in whose place vLLM's is executed", "a Python that stays"],
)
def test_a_launch_that_could_not_refuse_ends(tmp_path: Path, wrapper: str) -> None:
    """As where vLLM's command is a script that has modules of its own on Python's path."""
    program = install(tmp_path / "stand-in")
    program.write_text(wrapper)
    with front_door(tmp_path, FORBIDS, str(program), FAKE_VLLM="{}") as engine:
        state = engine.wait("failed", timeout_s=30)
    diagnosis = state["launch"]["diagnosis"]
    assert (diagnosis["family"], diagnosis["fix"]["patch"]) == ("compile", {"jit": "allow"})
    assert "PYTHONPATH" in diagnosis["summary"]


def test_a_launch_that_compiles_nothing_serves(tmp_path: Path) -> None:
    program = install(tmp_path / "stand-in")
    variables = {"FAKE_VLLM": json.dumps({"compiles": ["g++", "--version"]})}
    with front_door(tmp_path, FORBIDS, str(program), **variables) as engine:
        state = engine.wait("ready", timeout_s=30)
        assert "jit-forbidden-without-pack" in {finding["id"] for finding in state["launch"]["findings"]}


def test_a_temporary_folder_may_be_reached_through_a_link(tmp_path: Path) -> None:
    program = install(tmp_path / "stand-in")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short enough for a socket
        place, link = Path(folder, "place"), Path(folder, "link")
        place.mkdir()
        link.symlink_to(place)
        with front_door(tmp_path, FORBIDS, str(program), FAKE_VLLM="{}", TMPDIR=str(link)) as engine:
            assert engine.wait("ready", "failed", timeout_s=30)["state"] == "ready"
            assert len(list(place.glob("ingot-vllm-*"))) == 1
