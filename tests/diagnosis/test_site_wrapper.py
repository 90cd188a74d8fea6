"""What a site's own wrapper around vLLM adds: it is taken out there, where no profile could change it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.site_wrapper import read_wrapper
from appliance.protocol import Fix

SHELL = """\
#!/bin/sh
# for vLLM at this site
export VLLM_HTTP_TIMEOUT_KEEP_ALIVE=soon
exec echo "$@" {flags}
"""
PYTHON = f"""\
#!{sys.executable}
import os, sys

os.environ["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = "soon"
added = [{{flags}}]
print(*sys.argv[1:], *added)
"""
OTHER = "--enable-lora"


def wrapper(folder: Path, form: str, flag: str) -> Path:
    path = folder / "vllm at site"
    if form == "python":
        text = PYTHON.format(flags=f"{flag!r}, {OTHER!r}")
    else:
        text = SHELL.format(flags=f"{flag} {OTHER}" if form == "bare" else f"'{flag}' '{OTHER}'")
    path.write_text(text)
    path.chmod(0o755)
    return path


def told_of(error: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Fix:
    monkeypatch.setenv("INGOT_VLLM", str(path))
    profile = {"schema": 1, "name": "m", "engine": "vllm", "model": {"path": "m"}}
    fix = diagnose(number_lines(error), failed=True, profile=profile).fix
    assert fix is not None
    return fix


FAILURES = [
    ("--port=http", "vllm serve: error: argument --port: invalid int value: 'http'", "serve --enable-lora"),
    ("--gpu-memory-utilisation=0.5", "vllm: error: unrecognized arguments: --gpu-memory-utilisation=0.5",
     "serve --gpu-memory-utilization=0.5 --enable-lora"),
    ("--chat-template=/nowhere/a.jinja",
     "ValueError: The supplied chat template string (/nowhere/a.jinja) appears path-like, but doesn't exist!",
     "serve --enable-lora"),
    ("--lora-modules=mine=/nowhere/[a]", "ValueError: Loading lora mine failed: No adapter found for /nowhere/[a]",
     "serve --enable-lora"),
]  # fmt: skip


@pytest.mark.parametrize("form", ["python", "bare", "quoted"])
@pytest.mark.parametrize(("flag", "error", "left"), FAILURES)
def test_a_flag_of_the_wrapper_is_corrected_there(
    form: str, flag: str, error: str, left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real shell, after which the wrapper still runs and adds the rest."""
    path = wrapper(tmp_path, form, flag)
    fix = told_of(error, path, monkeypatch)
    assert fix.command is not None
    subprocess.run(["sh", "-c", fix.command], check=True)
    done = subprocess.run([path, "serve"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == left


@pytest.mark.parametrize("form", ["python", "bare"])
def test_a_variable_of_the_wrapper_goes(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wrapper(tmp_path, form, OTHER)
    fix = told_of("ValueError: VLLM_HTTP_TIMEOUT_KEEP_ALIVE must be a number", path, monkeypatch)
    assert fix.command is not None
    subprocess.run(["sh", "-c", fix.command], check=True)
    assert "KEEP_ALIVE" not in path.read_text()
    assert subprocess.run([path], capture_output=True, check=True).returncode == 0


@pytest.mark.parametrize(
    "flag", ["--ssl-certfile=/x", "--uds=/x", "--host=h", "--middleware=a.B", "--api-key=odd", "--headers=api_key=odd"]
)
def test_what_a_launch_is_not_to_do_without_stays(flag: str, tmp_path: Path) -> None:
    found = read_wrapper(wrapper(tmp_path, "python", flag))
    assert found is not None
    assert found.without_flag(flag.partition("=")[0]) is None


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/sh\nexec vllm --seed=1 --seed=1\n",
        "#!/bin/sh\nexec vllm --seeds=1\n",
        f"#!{sys.executable}\nrun(f'--seed={{1}}')\n",
        f"#!{sys.executable}\nseed = x('--seed=1'\n",
    ],
)
def test_what_is_not_certain_is_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "vllm").write_text(text)
    found = read_wrapper(tmp_path / "vllm")
    assert found is not None
    assert found.without_flag("--seed") is None


def test_only_a_short_script_is_read(tmp_path: Path) -> None:
    path = tmp_path / "vllm"
    assert read_wrapper(path) is None
    path.write_bytes(b"\x7fELF\xff")
    assert read_wrapper(path) is None
    path.write_text("#!/bin/sh\n" + "#" * (64 << 10))
    assert read_wrapper(path) is None
