"""The examples of docs/api.md as blocks, for the tests that run them: here, or in the venv of a foreign client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

MANUAL: Final = Path(__file__).parents[1] / "docs" / "api.md"
ADDRESS: Final = "http://127.0.0.1:8000"
SERVED: Final = "ingot-guide"
OTHER: Final = "qwen3-8b"  # in examples that a larger model answers better
# By what a program imports: the folder of tests/clients/install.py that has it.
CLIENTS: Final = {
    "langchain_openai": "langchain", "litellm": "litellm", "agents": "agents", "openai": "node",
    "@ai-sdk/openai-compatible": "node",
}  # fmt: skip


class Block(NamedTuple):
    line: int
    language: str
    text: str

    @property
    def client(self) -> str:
        """The foreign client that runs it; "" for what needs none."""
        first = re.match(r"(?:from|import) (\w+)", self.text)
        if self.language == "typescript":
            first = re.match(r'import .* from "([^"]+)"', self.text)
            return CLIENTS[first[1]] if first else "node"
        return CLIENTS.get(first[1], "") if first and first[1] != "openai" else ""

    def asking(self, url: str) -> str:
        """The text as of a server at `url`."""
        return self.text.replace(ADDRESS, url).replace(OTHER, SERVED)


def blocks() -> list[Block]:
    text = MANUAL.read_text()
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text.count("\n", 0, each.start()) + 1, each[1], each[2]) for each in found]
