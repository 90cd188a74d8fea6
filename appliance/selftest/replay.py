"""Asks a running engine the known questions over HTTP, and compares its answers token by token."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec

from appliance import address
from appliance.exit_status import exit_in_words
from appliance.front_door_token import front_door_token
from appliance.home import Home
from appliance.home_lock import is_held, read_owner
from appliance.selftest.answers import ALTERNATIVES, Answer, KnownAnswers, difference

ANSWER_TIMEOUT_S = 120.0
START_TIMEOUT_S = 180.0
# A server on all addresses is reached at this machine's own.
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class CannotReplayError(RuntimeError):
    """No engine answers, or it serves another model."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What `/v1/models` says about the available model."""

    id: str
    digest: str
    dtype: str
    device: str

    @property
    def exact(self) -> bool:
        """On the CPU in fp32 the engine computes alike every time: every token has to be the same."""
        return self.device == "cpu" and self.dtype == "float32"


class ServedModels(msgspec.Struct, frozen=True):
    data: Annotated[list[Served], msgspec.Meta(min_length=1)]


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one question. `apart` is the largest difference of a logprob; `difference` is None if the answers
    match."""

    question: str
    tokens: int
    apart: float
    seconds: float
    difference: str | None


class Engine:
    """A client of one running engine."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=ANSWER_TIMEOUT_S, trust_env=False)
        except httpx.InvalidURL as error:
            raise CannotReplayError(f"{url} is not a URL: {error}. Use one such as http://127.0.0.1:8000.") from error

    def served(self) -> Served:
        models = self._call("GET", "/v1/models")
        try:
            return msgspec.convert(models, ServedModels).data[0]
        except msgspec.ValidationError as error:
            raise CannotReplayError(f"{self._http.base_url} is not an Ingot engine: {error}") from error

    def ask(self, question: str) -> Answer:
        """The greedy answer to a chat's one message."""
        body = {
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": ALTERNATIVES,
            "return_token_ids": True,
        }
        answer = self._call("POST", "/v1/chat/completions", body)
        choice = answer["choices"][0]
        told = choice["logprobs"]["content"]
        return Answer(
            prompt_token_ids=answer["prompt_token_ids"],
            token_ids=choice["token_ids"],
            logprobs=[entry["logprob"] for entry in told],
            question=question,
            alternatives=[{top["token_id"]: top["logprob"] for top in entry["top_logprobs"]} for entry in told],
        )

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise CannotReplayError(f"No engine answers at {self._http.base_url}: {error}") from error
        try:
            answer = response.json()
        except ValueError as error:
            raise CannotReplayError(f"{response.url} is not an Ingot engine: its answer is not JSON") from error
        if response.status_code != 200:
            said = answer.get("error", {}).get("message", response.text)
            raise CannotReplayError(f"{path} returned {response.status_code}: {said}")
        return answer


def replay(engine: Engine, known: KnownAnswers) -> Iterator[Replayed]:
    """Raises CannotReplayError if the engine serves a model other than the bundled one."""
    served = engine.served()
    if served.digest != known.model_digest:
        raise CannotReplayError(
            f"The engine serves {served.id!r} ({served.digest}); the known answers are of the bundled model "
            f"({known.model_digest})."
        )
    for expected in known.answers:
        began = time.perf_counter()
        got = engine.ask(expected.question)
        seconds = time.perf_counter() - began
        found = difference(expected, got, known.tolerance[served.dtype], exact=served.exact)
        if got.prompt_token_ids != expected.prompt_token_ids:
            found = "the question was tokenised differently"
        pairs = zip(expected.logprobs, got.logprobs, strict=False)
        yield Replayed(
            question=expected.question,
            tokens=len(got.token_ids),
            apart=max((abs(wanted - told) for wanted, told in pairs), default=0.0),
            seconds=seconds,
            difference=found,
        )


def record(engine: Engine, questions: Sequence[str], tolerance: dict[str, float]) -> KnownAnswers:
    """This engine's answers, as the known answers from now on."""
    digest = engine.served().digest
    answers = [engine.ask(question).without_alternatives() for question in questions]
    return KnownAnswers(model_digest=digest, tolerance=tolerance, answers=answers)


def key_for(url: str, home: Home) -> str | None:
    """`INGOT_API_KEY`; or, only for the engine of this state folder, the console's token, which opens everything and
    which only the console's user can read."""
    if key := os.environ.get("INGOT_API_KEY"):
        return key
    if url.rstrip("/") not in own_urls(home):
        return None
    try:
        return front_door_token(home)
    except OSError:
        return None


def own_urls(home: Home) -> list[str]:
    """Where the `ingot serve` that holds this state folder listens, the address to ask it at last; empty where none
    does."""
    owner = read_owner(home.lock)
    if owner is None or not is_held(home.lock):
        return []
    return [address.url(host, owner.port) for host in (owner.host, ANY_ADDRESS.get(owner.host, owner.host))]


def running_engine(urls: Sequence[str]) -> str | None:
    """The first of them at which a front door answers, whatever its state."""
    return next((url for url in urls if _answers_at(url)), None)


def _answers_at(url: str) -> bool:
    try:
        health = httpx.get(f"{url}/health", timeout=2, trust_env=False)
    except httpx.HTTPError:
        return False
    return bool(health.headers.get("server") == "ingot")


@contextlib.contextmanager
def temporary_engine() -> Iterator[str]:
    """The address of an engine with the bundled model and a state folder of its own, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="ingot-selftest-") as folder:
        environment = {**os.environ, "INGOT_HOME": str(Path(folder) / "home")}
        command = [sys.executable, "-m", "appliance.cli", "serve", "--port", "0"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().rpartition(" ")[2].strip()
            if not url:
                raise CannotReplayError(f"The engine did not start: {exit_in_words(process.wait())} (see above).")
            wait_ready(url)
            yield url
        finally:
            process.terminate()
            process.communicate()


def wait_ready(url: str) -> None:
    """Raises CannotReplayError with the cause if the engine does not become ready."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            health = httpx.get(f"{url}/health", timeout=10, trust_env=False)
        except httpx.HTTPError as error:
            raise CannotReplayError(f"The engine at {url} ended before it was ready: {error}") from error
        if health.status_code == 200:
            return
        if health.json()["state"] in ("failed", "hung", "stopped"):
            raise CannotReplayError(f"The engine did not start: {health.json()['reason']}")
        time.sleep(0.05)
    raise CannotReplayError(f"The engine was not ready after {START_TIMEOUT_S:.0f} s.")
