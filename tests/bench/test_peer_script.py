"""tests/gpu/peer.sh, ranks.sh and vllm.sh without a GPU: what they run, in which order, and for how long."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.bench import structured_peer
from tests.bench.comparison import GOALS, ONE_GPU, VLLM, goals_of, load_figures
from tests.bench.peer import GPU_LOADS, OTHERS, parse
from tests.bench.warm import parse as parse_warm

SCRIPTS = Path(__file__).parents[1] / "gpu"
# The GPU machine's Python: names an architecture and a version, makes an empty cast, and fails for one model.
PYTHON = """#!/bin/bash
if [ "$1" = - ]; then cat > /dev/null; echo sm_90; exit; fi
if [ "$1" = -c ]; then echo 3.12; exit; fi
if [ "$2" = pip ]; then exit; fi  # where wheels are carried
echo "ran with ${INGOT_GPU_CAST:-nothing}: $*"
previous=
for word in "$@"; do [ "$previous" != --out ] || mkdir -p "$word"; previous=$word; done
[[ "$*" != *qwen3-8b* ]]
"""


def script(
    tmp_path: Path, *arguments: str, name: str = "peer.sh", **variables: str
) -> subprocess.CompletedProcess[str]:
    python = tmp_path / "python3"
    python.write_text(PYTHON)
    python.chmod(0o755)
    kept = {each: value for each, value in os.environ.items() if not each.startswith("INGOT_") and each != "OUT"}
    ours = {"INGOT_VLLM": "/there/vllm", "INGOT_GPU_KEPT": str(tmp_path / "kept")}
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **ours, **variables}
    command = [str(SCRIPTS / name), *arguments]
    return subprocess.run(command, env=kept | variables, capture_output=True, text=True, timeout=60)


def test_it_builds_checks_and_times_and_goes_on_after_a_part_that_failed(tmp_path):
    done = script(tmp_path)
    assert done.returncode == 1
    ran = re.findall(r"^ran with (\S+): (.*)$", done.stdout, re.MULTILINE)
    assert [re.search(r"verify|cast|--shape \S+", words.removeprefix("-m appliance.cast "))[0] for _, words in ran] == [
        "cast", "verify", "--shape tinyllama-1.1b", "--shape qwen3-8b", "--shape qwen3-30b-a3b",
    ]  # fmt: skip
    casts = [cast for cast, _ in ran]
    assert casts[0] == "nothing"
    assert len(set(casts[1:])) == 1
    outcomes = dict(re.findall(r"^(\S+) +\d+ s  (\w+)", done.stdout.partition("All after")[2], re.MULTILINE))
    assert [part for part, outcome in outcomes.items() if outcome != "passed"] == ["qwen3-8b"]


def test_a_cast_that_is_there_is_not_built_again(tmp_path):
    done = script(tmp_path, "verify", INGOT_GPU_CAST="/there/cast")
    assert done.returncode == 0
    assert re.findall(r"^ran with (\S+): ", done.stdout, re.MULTILINE) == ["/there/cast"]


def test_without_a_vllm_and_with_a_part_that_there_is_not_it_refuses(tmp_path):
    assert script(tmp_path, "nothing").returncode == 2
    packed = SCRIPTS.parents[1] / ".gpu-vllm"
    assert packed.exists() or script(tmp_path, "verify", INGOT_VLLM="").returncode == 2


def test_it_calls_the_program_as_it_can_be_called(tmp_path, monkeypatch):
    commands = re.findall(r"-m tests\.bench\.peer (.*)", script(tmp_path, "--dry-run").stdout)
    monkeypatch.setenv("INGOT_VLLM", "vllm")
    for command in commands:
        monkeypatch.setattr(sys, "argv", ["peer", *command.split()])
        assert parse().loads == GPU_LOADS
    assert len(commands) == 3


def test_it_runs_few_layers_of_other_families_when_they_are_named(tmp_path, monkeypatch):
    done = script(tmp_path, "--dry-run", "cast", "qwen3-next", "deepseek-v3")
    assert done.returncode == 0
    commands = re.findall(r"-m tests\.bench\.peer (.*)", done.stdout)
    monkeypatch.setenv("INGOT_VLLM", "vllm")
    found = []
    for command in commands:
        monkeypatch.setattr(sys, "argv", ["peer", *command.split()])
        options = parse()
        figures = load_figures({load: [] for load in options.loads}, {})
        assert GOALS[options.shape].keys() <= {figure.name for figure in figures}
        found.append((options.shape, options.layers))
    assert found == [("qwen3-next", 8), ("deepseek-v3", 4)]


@pytest.mark.parametrize(("parts", "other"), [((), ONE_GPU), (("cast", "vllm-8b", "vllm-30b-a3b"), VLLM)])
def test_two_gpus_are_timed_beside_one_and_beside_vllm(tmp_path, monkeypatch, parts, other):
    """Each time the figures that have goals, and no vLLM is asked for where none runs."""
    done = script(tmp_path, "--dry-run", *parts, name="ranks.sh", INGOT_VLLM="")
    assert done.returncode == 0
    commands = re.findall(r"-m tests\.bench\.peer (.*)", done.stdout)
    monkeypatch.setenv("INGOT_VLLM", "vllm" if other == VLLM else "")
    found = []
    for command in commands:
        monkeypatch.setattr(sys, "argv", ["peer", *command.split()])
        options = parse()
        figures = load_figures({load: [] for load in options.loads}, {}, other)
        goals = goals_of(options.shape, options.tensor_parallel_size, other)
        assert goals
        assert goals.keys() <= {figure.name for figure in figures}
        found.append((OTHERS[options.beside], options.shape, options.layers))
    assert found == [(other, "qwen3-8b", None), (other, "qwen3-30b-a3b", 16)]


def test_every_test_of_two_gpus_is_run_by_one_part(tmp_path):
    done = script(tmp_path, "--dry-run", name="ranks.sh")
    parts = [words.split(" or ") for words in re.findall(r"test_ranks_on_gpu\.py -k '(.*)'", done.stdout)]
    names = re.findall(r"^def (test_\w+)", (SCRIPTS / "test_ranks_on_gpu.py").read_text(), re.MULTILINE)
    for name in names:
        assert [any(word in name for word in words) for words in parts].count(True) == 1, name
    assert len(names) > 4


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A checkout with the scripts, and a folder for a packed vLLM."""
    if not shutil.which("xz"):
        pytest.skip("xz unpacks a packed vLLM")
    shutil.copytree(SCRIPTS, tmp_path / "root/tests/gpu", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setitem(globals(), "SCRIPTS", tmp_path / "root/tests/gpu")
    (tmp_path / "root/.gpu-vllm").mkdir()
    return tmp_path / "root"


def bring(root, *names):
    """The archives that a call carries, each with a file in it."""
    for name in names:
        (root / name).write_text(name)
        with tarfile.open(root / ".gpu-vllm" / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(root / name, name)


def test_a_packed_vllm_does_without_flashinfer(tmp_path, root, monkeypatch):
    """It would take it for prompts of gated delta layers, there or not."""
    bring(root, "library", "python", "packages")
    monkeypatch.setitem(globals(), "PYTHON", PYTHON + '[[ "$*" != *tests.bench.peer* ]] || "$INGOT_VLLM" serve there\n')
    done = script(tmp_path, "qwen3-next", INGOT_VLLM="", INGOT_GPU_CAST="/there/cast")
    assert done.returncode == 0, done.stderr
    options = re.findall(r"-m vllm\.entrypoints\.cli\.main serve there (.*)$", done.stdout, re.MULTILINE)
    assert options == ["--gdn-prefill-backend triton"]


def test_a_vllm_that_comes_in_two_calls_is_started_cold_and_with_its_pack(tmp_path, root, monkeypatch):
    """Each archive is unpacked once, whichever call brings it. Then both models are timed, the cast made once."""
    ran = r"^ran with \S+: -m (appliance\.cast|tests\.bench\.warm) (.*)$"
    bring(root, "python", "packages")
    assert script(tmp_path, "unpack", name="vllm.sh", INGOT_VLLM="").returncode == 0
    assert script(tmp_path, name="vllm.sh", INGOT_VLLM="").returncode == 2  # the library is not there yet
    shutil.rmtree(root / ".gpu-vllm")
    (root / ".gpu-vllm").mkdir()
    bring(root, "library")
    done = script(tmp_path, "dense", name="vllm.sh", INGOT_VLLM="")
    assert done.returncode == 1  # the stand-in fails for this model
    assert [words for words, _ in re.findall(ran, done.stdout, re.MULTILINE)] == ["appliance.cast", "tests.bench.warm"]
    [site] = (tmp_path / "kept/vllm/lib").glob("python*/site-packages")
    assert {path.name for path in site.iterdir()} == {"library", "python", "packages"}

    done = script(tmp_path, "moe", name="vllm.sh", INGOT_VLLM="")
    assert done.returncode == 0, done.stderr
    [(module, words)] = re.findall(ran, done.stdout, re.MULTILINE)
    assert module == "tests.bench.warm"
    monkeypatch.setenv("INGOT_VLLM", "vllm")
    monkeypatch.setattr(sys, "argv", ["warm", *words.split()])
    options = parse_warm()
    assert (options.shape, options.layers, options.device) == ("qwen3-30b-a3b-fp8", 16, "cuda")
    assert 0 < options.seconds < 300


def test_what_a_launch_adds_to_pythons_path_comes_first(tmp_path, root, monkeypatch):
    """`jit: forbid` has its hook there."""
    bring(root, "library", "python", "packages")
    monkeypatch.setitem(globals(), "PYTHON", PYTHON + '[[ "$*" != *bench.warm* ]] || PYTHONPATH=/hook "$INGOT_VLLM"\n'
                        '[[ "$*" != *cli.main* ]] || echo "path $PYTHONPATH"\n')  # fmt: skip
    done = script(tmp_path, "moe", name="vllm.sh", INGOT_VLLM="", INGOT_GPU_CAST="/there/cast")
    assert re.findall(r"^path (/hook:.*/site-packages)$", done.stdout, re.MULTILINE)


def test_no_part_takes_more_than_five_minutes():
    # Where each has its grace from.
    graces = {"run.sh": "parts.sh", "peer.sh": "peer.sh", "ranks.sh": "ranks.sh", "vllm.sh": "vllm.sh"}
    for name, place in graces.items():
        limits = re.search(r"limits=\((.*)\)", (SCRIPTS / name).read_text())[1]
        grace = re.search(r"^grace=(\d+)", (SCRIPTS / place).read_text(), re.MULTILINE)[1]
        assert max(map(int, re.findall(r"=(\d+)", limits))) + int(grace) <= 300, name


def test_structured_output_is_timed_in_the_cast_that_is_built_meanwhile(tmp_path, monkeypatch):
    done = script(tmp_path, "--shape", "tinyllama-1.1b", name="structured.sh", INGOT_GPU_SECONDS="100")
    assert done.returncode == 0, done.stdout + done.stderr
    ((cast, command),) = re.findall(
        r"^ran with (\S+): -m tests\.bench\.structured_peer (.*)$", done.stdout, re.MULTILINE
    )
    assert cast.endswith("/cast")
    monkeypatch.setenv("INGOT_VLLM", "vllm")
    monkeypatch.setattr(sys, "argv", ["structured_peer", *command.split()])
    options = structured_peer.parse()
    assert (options.shape, options.streams) == ("tinyllama-1.1b", 64)
    assert 0 < options.seconds < 100


def test_structured_output_in_a_cast_that_is_there(tmp_path):
    done = script(tmp_path, name="structured.sh", INGOT_GPU_CAST="/there/cast")
    assert done.returncode == 0
    assert [cast for cast, _ in re.findall(r"^ran with (\S+): (.*)$", done.stdout, re.MULTILINE)] == ["/there/cast"]
