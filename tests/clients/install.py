"""`python tests/clients/install.py [FOLDER]`: foreign clients, each in a folder of its own; the last line is FOLDER.

Those that cannot be had are left out, with the reason in FOLDER/NAME.log.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

# By program: versions that are proven, as docs/api.md has them.
PYTEST = "pytest==9.2.0"
PYTHON: dict[str, tuple[str, ...]] = {
    "langchain": (
        "langchain==1.4.7", "langchain-openai==1.7.3", "langchain-anthropic==1.7.7", "langchain-ollama==1.1.0",
    ),
    "litellm": ("litellm==1.106.2", "mcp==2.3.0"),
    "agents": ("openai-agents==0.24.0",),
    "pydantic_ai": ("pydantic-ai-slim[openai]==2.38.0", "instructor==1.17.0", "anthropic==0.125.0"),
    "llama_index": ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"),
    "schemathesis": ("schemathesis==4.32.5",),
}  # fmt: skip
NODE: tuple[str, ...] = (
    "ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92", "@ai-sdk/anthropic@3.0.140",
    "zod@4.6.7", "openai@7.57.0",
)  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".venv-clients").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name, packages in PYTHON.items():
        if wanted(folder / name, packages):
            venv.create(folder / name, with_pip=True, clear=True)
            pip = [str(folder / name / "bin" / "python"), "-m", "pip", "install", "--quiet", PYTEST, *packages]
            finish(folder / name, pip, packages)
    if wanted(folder / "node", NODE):
        (folder / "node").mkdir(exist_ok=True)
        (folder / "node" / "package.json").write_text(json.dumps({"private": True}))
        npm = [shutil.which("npm") or "npm", "--prefix", str(folder / "node"), "install", "--silent", *NODE]
        finish(folder / "node", npm, NODE)
    print(folder)


def wanted(folder: Path, packages: tuple[str, ...]) -> bool:
    """Unless these very versions are there."""
    done = folder / ".installed"
    return not (done.exists() and done.read_text().split() == list(packages))


def finish(folder: Path, command: list[str], packages: tuple[str, ...]) -> None:
    print(f"Installing {' '.join(packages)}", file=sys.stderr, flush=True)
    log = folder.with_name(f"{folder.name}.log")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.write_text(str(error))
        return
    log.write_text(done.stderr)
    if done.returncode == 0:
        (folder / ".installed").write_text("\n".join(packages))


if __name__ == "__main__":
    main()
