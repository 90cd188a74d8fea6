"""Real tokens from vLLM, or a real vector of a model that makes those: the proof that it serves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from appliance.selftest.launch_check import SelfTestError
from appliance.supervisor.vllm_http import fetch

PROMPT = "1 + 1 ="


class Asker:
    """Asks the model by its `name`; remembers whether it generates text or makes vectors."""

    def __init__(self, socket: Path, name: str) -> None:
        self._socket = socket
        self._name = name
        self._makes_vectors = False

    async def ask(self, tokens: int, *, timeout_s: float) -> None:
        """Raises SelfTestError, UpstreamGoneError, TimeoutError."""
        if not self._makes_vectors:
            body = {"model": self._name, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "logprobs": 1}
            status, raw = await fetch(self._socket, "/v1/completions", body | {"ignore_eos": True}, timeout_s=timeout_s)
            if status != 404:  # vLLM has the routes of what its model can do
                check_completion(status, raw, tokens)
                return
        body = {"model": self._name, "input": PROMPT}
        status, raw = await fetch(self._socket, "/v1/embeddings", body, timeout_s=timeout_s)
        check_embedding(status, raw)
        self._makes_vectors = True


def check_completion(status: int, raw: bytes, tokens: int) -> None:
    """Raises SelfTestError unless there are that many tokens, each with a finite probability."""
    content = _content(status, raw)
    try:
        logprobs = content["choices"][0]["logprobs"]["token_logprobs"]
    except (KeyError, IndexError, TypeError):
        raise SelfTestError(f"self-test: vLLM's answer has no tokens: {_shown(raw)}") from None
    if len(logprobs) < tokens:
        raise SelfTestError(f"self-test: vLLM generated {len(logprobs)} tokens of {tokens}")
    _check_finite(logprobs, "tokens have a probability that is no finite number")


def check_embedding(status: int, raw: bytes) -> None:
    """Raises SelfTestError unless there is a vector of finite numbers."""
    content = _content(status, raw)
    try:
        vector = content["data"][0]["embedding"]
    except (KeyError, IndexError, TypeError):
        raise SelfTestError(f"self-test: vLLM's answer has no vector: {_shown(raw)}") from None
    _check_finite(vector, "values of its vector are no finite numbers")


def _check_finite(numbers: list[Any], what: str) -> None:
    bad = [number for number in numbers if not isinstance(number, int | float) or not math.isfinite(number)]
    if bad or not numbers:
        raise SelfTestError(f"self-test: {len(bad)} of {len(numbers)} {what}")


def _content(status: int, raw: bytes) -> Any:
    try:
        content = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        content = None
    if status != 200:
        error = content.get("error") if isinstance(content, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        raise SelfTestError(f"self-test: vLLM answered {status}: {message or _shown(raw)}")
    return content


def _shown(raw: bytes) -> str:
    return raw[:200].decode(errors="replace") or "nothing"
