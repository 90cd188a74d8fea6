"""`python -m tests.vllm.bench_proxy`: what the front door adds to vLLM's latency, at several streams at a time.

Starts a real vLLM through `ingot serve`, and asks it in turns directly, over its own socket, and through the front
door, so that whatever else the machine does falls on both alike. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.tiny import write_checkpoint
from tests.vllm.real import PROFILE, serving, socket_of

STREAMS = 8
PROMPT_TOKENS = 64
TOKENS = 64
ROUNDS = 40
GOAL = 0.03
# 31 million random weights: a step of 8 streams takes 5 to 10 ms on two cores, as one of 8 billion does on a GPU.
MODEL: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 4096,
}  # fmt: skip
VOCABULARY = (10, 4000)


@dataclass
class Way:
    """One way to the engine, and what was measured on it, in seconds."""

    name: str
    target: str  # the path of a socket, or http://host:port
    first_token: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)

    async def ask(self, model: str, rng: random.Random) -> None:
        body = json.dumps({
            "model": model,
            "prompt": [rng.randrange(*VOCABULARY) for _ in range(PROMPT_TOKENS)],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }).encode()  # fmt: skip
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: engine\r\nconnection: close\r\ncontent-type: application/json\r\n"
        )
        began = time.perf_counter()
        reader, writer = await self._connect()
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        first, tail = 0.0, b""
        while data := await reader.read(65536):
            tail = (tail + data)[-64:]
            if not first and b"data: " in data:
                first = time.perf_counter() - began
        self.whole.append(time.perf_counter() - began)
        self.first_token.append(first)
        writer.close()
        assert b"[DONE]" in tail, f"{self.name}: the answer ends in {tail!r}"

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.target.startswith("/"):
            return await asyncio.open_unix_connection(self.target)
        address = urlsplit(self.target)
        return await asyncio.open_connection(address.hostname, address.port)


async def measure(direct: Way, through: Way, model: str, rounds: int) -> None:
    rng = random.Random(7)
    for warm in (direct, through):
        await asyncio.gather(*(warm.ask(model, rng) for _ in range(STREAMS)))
        warm.first_token.clear()
        warm.whole.clear()
    for number in range(rounds):
        for way in (direct, through) if number % 2 else (through, direct):
            await asyncio.gather(*(way.ask(model, rng) for _ in range(STREAMS)))


def figures(direct: Way, through: Way) -> dict[str, Any]:
    def row(way: Way) -> dict[str, float]:
        return {
            "ttft_ms_p50": round(1e3 * statistics.median(way.first_token), 2),
            "latency_ms_p50": round(1e3 * statistics.median(way.whole), 2),
            "latency_ms_mean": round(1e3 * statistics.mean(way.whole), 2),
        }

    added = statistics.median(through.whole) / statistics.median(direct.whole) - 1
    return {
        "streams": STREAMS,
        "prompt_tokens": PROMPT_TOKENS,
        "tokens": TOKENS,
        "requests": len(direct.whole),
        "direct": row(direct),
        "through the front door": row(through),
        "added": round(added, 4),
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder / "models" / "bench", dtype="bfloat16", scale=0.02, **MODEL)
        profile = PROFILE | {"model": {"path": "bench"}}
        found = asyncio.run(run(folder, profile, rounds))
    for name, value in found.items():
        print(f"{name:>24}  {value}")
    ok = found["added"] < GOAL
    print(json.dumps({"added_share_of_latency": {"value": found["added"], "goal": GOAL, "ok": ok}}), flush=True)
    sys.exit(0 if ok else 1)


async def run(folder: Path, profile: dict[str, Any], rounds: int) -> dict[str, Any]:
    with serving(folder, profile) as engine:
        direct, through = Way("direct", str(socket_of(engine.process.pid))), Way("through", engine.url)
        await measure(direct, through, engine.model, rounds)
    return figures(direct, through)


if __name__ == "__main__":
    main()
