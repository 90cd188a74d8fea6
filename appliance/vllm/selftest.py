"""One real answer of the model, of the kind that it gives: the proof that vLLM serves it."""

from __future__ import annotations

import io
import math
import re
import wave
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.engine_process.errors import NotListeningError
from appliance.selftest.launch_check import SelfTestError
from appliance.vllm.http import fetch

PROMPT: Final = "1 + 1 ="
SILENCE_HZ: Final = 16000
BOUNDARY: Final = "ingot-self-test"
_UNSUPPORTED: Final = re.compile(r"does not support \w{1,40} API")

# Content type and body of a request.
Request = tuple[str, bytes]


class Proof(msgspec.Struct, frozen=True):
    """A route, what it is asked, and what its answer must be; `check` raises SelfTestError. Both are given how many
    tokens are wanted, which only the first can heed."""

    path: str
    request: Callable[[str, int], Request]
    check: Callable[[Any, int], None]


class Asker:
    """Asks the model by its `name`; remembers which of PROOFS it can give. vLLM has the routes of what its model can
    do; its older versions have all of them, and say of the others that the model does not support them."""

    def __init__(self, socket: Path, name: str) -> None:
        self._socket = socket
        self._name = name
        self._proof: Proof | None = None

    async def ask(self, tokens: int, *, timeout_s: float) -> None:
        """Raises SelfTestError, UpstreamGoneError, TimeoutError, and NotListeningError where vLLM's server says that it
        failed: what its engine ended of, its log says."""
        said = ""
        for proof in (self._proof,) if self._proof else PROOFS:
            kind, body = proof.request(self._name, tokens)
            status, raw = await fetch(self._socket, proof.path, body, content_type=kind, timeout_s=timeout_s)
            said = _message(raw)
            if _has_not(status, said):
                continue
            if status != HTTPStatus.OK:
                answered = f"self-test: vLLM answered {status} to {proof.path}: {said}"
                failed = status >= HTTPStatus.INTERNAL_SERVER_ERROR
                raise NotListeningError(answered) if failed else SelfTestError(answered)
            proof.check(_content(raw), tokens)
            self._proof = proof
            return
        tried = ", ".join(proof.path for proof in PROOFS)
        raise SelfTestError(f"self-test: this model supports none of {tried}; vLLM answered: {said}")


def _has_not(status: int, said: str) -> bool:
    return status == HTTPStatus.NOT_FOUND or (
        status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED) and _UNSUPPORTED.search(said) is not None
    )


# --------------------------------------------------------------------------------------------------------------------
# What is asked
# --------------------------------------------------------------------------------------------------------------------


def _completion(name: str, tokens: int) -> Request:
    wanted = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    return _json({"model": name} | wanted)


def _input(name: str, _tokens: int) -> Request:
    return _json({"model": name, "input": PROMPT})


def _pair(name: str, _tokens: int) -> Request:
    return _json({"model": name, "text_1": PROMPT, "text_2": "2"})


def _json(content: Any) -> Request:
    return "application/json", msgspec.json.encode(content)


def _recording(name: str, _tokens: int) -> Request:
    """A second of silence, as a form with a file."""
    sound = io.BytesIO()
    with wave.open(sound, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(SILENCE_HZ)
        recording.writeframes(bytes(2 * SILENCE_HZ))
    parts = (
        ('form-data; name="model"', name.encode()),
        ('form-data; name="temperature"', b"0"),
        ('form-data; name="file"; filename="silence.wav"', sound.getvalue()),
    )
    body = b"".join(
        f"--{BOUNDARY}\r\nContent-Disposition: {head}\r\n\r\n".encode() + content + b"\r\n" for head, content in parts
    )
    return f"multipart/form-data; boundary={BOUNDARY}", body + f"--{BOUNDARY}--\r\n".encode()


# --------------------------------------------------------------------------------------------------------------------
# What the answer must be
# --------------------------------------------------------------------------------------------------------------------


def check_tokens(content: Any, tokens: int) -> None:
    """That many tokens, each with a finite probability."""
    logprobs = _at(content, "choices", 0, "logprobs", "token_logprobs")
    if not isinstance(logprobs, list):
        raise SelfTestError(f"self-test: vLLM's answer has no tokens: {_shown(content)}")
    if len(logprobs) < tokens:
        raise SelfTestError(f"self-test: vLLM generated {len(logprobs)} tokens of {tokens}")
    _check_finite(logprobs, "tokens have a non-finite probability", content)


def _numbers(*where: str | int) -> Callable[[Any, int], None]:
    def check(content: Any, _tokens: int) -> None:
        found = list(_flat(_at(content, *where)))
        _check_finite(found, "output values are not finite", content)

    return check


def _check_text(content: Any, _tokens: int) -> None:
    if not isinstance(_at(content, "text"), str):
        raise SelfTestError(f"self-test: vLLM's answer has no text: {_shown(content)}")


def _at(content: Any, *where: str | int) -> Any:
    """None where the answer is of another shape."""
    for key in where:
        try:
            content = content[key]
        except (KeyError, IndexError, TypeError):
            return None
    return content


def _flat(numbers: Any) -> Iterator[Any]:
    if not isinstance(numbers, list):
        yield numbers
        return
    for each in numbers:
        yield from _flat(each)


def _check_finite(numbers: list[Any], what: str, content: Any) -> None:
    bad = [number for number in numbers if not isinstance(number, int | float) or not math.isfinite(number)]
    if bad or not numbers:
        raise SelfTestError(f"self-test: {len(bad)} of {len(numbers)} {what}: {_shown(content)}")


def _content(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        # Python's own writer of JSON says NaN where JSON has no word for it.
        raise SelfTestError(f"self-test: vLLM's answer is not JSON: {raw[:200].decode(errors='replace')}") from None


def _message(raw: bytes) -> str:
    """What an error says."""
    try:
        message = _at(msgspec.json.decode(raw), "error", "message")
    except msgspec.DecodeError:
        message = None
    return message if isinstance(message, str) else raw[:200].decode(errors="replace") or "nothing"


def _shown(content: Any) -> str:
    return msgspec.json.encode(content)[:200].decode(errors="replace")


PROOFS: Final = (
    Proof("/v1/completions", _completion, check_tokens),
    Proof("/v1/embeddings", _input, _numbers("data", 0, "embedding")),
    Proof("/pooling", _input, _numbers("data", 0, "data")),
    Proof("/classify", _input, _numbers("data", 0, "probs")),
    Proof("/score", _pair, _numbers("data", 0, "score")),
    Proof("/v1/audio/transcriptions", _recording, _check_text),
)
