"""Known answers: what counts as the same, and replaying them through a whole engine."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from appliance.checkpoint.digest import checkpoint_digest
from appliance.core_protocol import SamplingParams
from appliance.front_door_token import front_door_token
from appliance.home import Home
from appliance.home_lock import Owner, OwnerLock
from appliance.selftest import answers, launch_check
from appliance.selftest.answers import TOLERANCE, Answer, KnownAnswers, difference
from appliance.selftest.launch_check import SelfTestError, Subject, check_launch, fixed_prompt
from appliance.selftest.questions import selftest_questions
from appliance.selftest.replay import CannotReplayError, Engine, key_for, temporary_engine, wait_ready
from tests.running import INGOT, engine, environment, fetch, wait_for


def answer(tokens: list[int], logprobs: list[float], second: dict[int, float] | None = None) -> Answer:
    """`second`: the likeliest tokens at the second place."""
    alternatives = [{}, second] if second else []
    return Answer(prompt_token_ids=[1], token_ids=tokens, logprobs=logprobs, alternatives=alternatives)


EXPECTED = answer([5, 6, 7], [-0.1, -0.2, -0.3])


@pytest.mark.parametrize(
    ("got", "exact", "says"),
    [
        (EXPECTED, True, None),
        (answer([5, 6, 7], [-0.1, -0.2, -0.3009]), False, None),
        (answer([5, 6, 7], [-0.1, -0.2, -0.3011]), False, "logprob of token 3"),
        # A tie: what follows is another text.
        (answer([5, 9, 9], [-0.1, -0.1995, -9.0], {9: -0.1995, 6: -0.2}), False, None),
        (answer([5, 9, 9], [-0.1, -0.1995, -9.0], {9: -0.1995, 6: -0.2}), True, "token 2 is 9"),
        (answer([5, 9, 9], [-0.1, -0.2, -0.3], {9: -0.2, 6: -1.7}), False, "1.5000"),
        (answer([5, 9, 9], [-0.1, -0.2, -0.3], {9: -0.2, 8: -1.7}), False, "5 likeliest"),
        (answer([5, 9, 9], [-0.1, -0.2, -0.3], {9: -0.2, 6: float("nan")}), False, "token 2 is 9"),
        (answer([5, 9, 9], [-0.1, -0.2, -0.3]), False, "5 likeliest"),
        (answer([5, 9, 9], [-0.1, -0.9, -0.3], {9: -0.9, 6: -0.9}), False, "logprob of token 2 (6) is -0.90000"),
        (answer([5, 6], [-0.1, -0.2]), False, "2 tokens"),
        (answer([5, 6, 7], [-0.1, float("nan"), -0.3]), False, "logprob of token 2 is nan"),
        (answer([5, 6, 7], [-0.1, float("-inf"), -0.3]), False, "logprob of token 2 is -inf"),
        (answer([5, 6, 7], [-0.1]), False, "3 tokens"),
    ],
)
def test_what_counts_as_the_same(got: Answer, exact: bool, says: str | None) -> None:
    """Exactly on the CPU in fp32; elsewhere within a tolerance, where two equally likely tokens may change places."""
    found = difference(EXPECTED, got, 1e-3, exact=exact)
    assert found is None if says is None else says in (found or "")


def subject(**changes: object) -> Subject:
    values = {"digest": "sha256:aa", "sample": "bb", "dtype": "float32", "device": "cpu", "vocab_size": 50}
    return Subject(**{**values, "max_model_len": 64, **changes})  # type: ignore[arg-type]


async def test_a_record_is_kept_for_each_dtype_and_device(tmp_path: Path) -> None:
    """What an H200 computes in bfloat16 is not held against a CPU."""

    def engine_with(logprob: float) -> launch_check.Generate:
        async def generate(prompt: list[int], sampling: SamplingParams) -> Answer:
            assert sampling.temperature == 0
            return answer([7] * sampling.max_tokens, [logprob] * sampling.max_tokens)

        return generate

    moved: list[tuple[int, int]] = []
    await check_launch(engine_with(-1.0), subject(), tmp_path, lambda *step: moved.append(step))
    assert moved == [(0, 1), (1, 1)]
    await check_launch(engine_with(-2.0), subject(dtype="bfloat16"), tmp_path, lambda *_: None)
    await check_launch(engine_with(-3.0), subject(device="NVIDIA H200"), tmp_path, lambda *_: None)
    await check_launch(engine_with(-1.0), subject(), tmp_path, lambda *_: None)
    with pytest.raises(SelfTestError, match="self-test"):
        await check_launch(engine_with(-2.0), subject(), tmp_path, lambda *_: None)
    assert len(list(tmp_path.iterdir())) == 3


async def test_a_record_that_cannot_be_written_is_reported_and_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk does not keep a good model from serving."""

    async def generate(prompt: list[int], sampling: SamplingParams) -> Answer:
        return answer([7] * sampling.max_tokens, [-1.0] * sampling.max_tokens)

    moved: list[tuple[int, int]] = []
    await check_launch(generate, subject(), tmp_path / "missing", lambda *step: moved.append(step))
    assert moved[-1] == (1, 1)
    assert "cannot write the self-test's record" in capsys.readouterr().err


async def test_the_prompt_fits_the_smallest_context(tmp_path: Path) -> None:
    """And its ids are in the vocabulary, however small."""
    asked: list[tuple[int, int]] = []

    async def generate(prompt: list[int], sampling: SamplingParams) -> Answer:
        asked.append((len(prompt), sampling.max_tokens))
        return answer([7] * sampling.max_tokens, [-1.0] * sampling.max_tokens)

    for length in (2, 5, 9, 16, 4096):
        await check_launch(generate, subject(max_model_len=length, digest=f"{length}"), tmp_path, lambda *_: None)
    assert all(prompt + new <= length for (prompt, new), length in zip(asked, (2, 5, 9, 16, 4096), strict=True))
    assert all(prompt >= 1 and new >= 1 for prompt, new in asked)
    assert max(fixed_prompt(3)) < 3


async def test_the_bundled_model_is_asked_its_own_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known by its digest; nothing is recorded for it, and a wrong answer is reported with its question."""
    question = Answer(prompt_token_ids=[3, 4], token_ids=[5, 6], logprobs=[-0.1, -0.2], question="Who are you?")
    known = KnownAnswers(model_digest="sha256:aa", tolerance=TOLERANCE, answers=[question])
    path = tmp_path / "answers.json"
    path.write_bytes(msgspec.json.encode(known))
    monkeypatch.setattr(launch_check, "read_known", lambda: answers.read_known(path))
    records = tmp_path / "records"
    records.mkdir()

    async def right(prompt: list[int], sampling: SamplingParams) -> Answer:
        assert (prompt, sampling.max_tokens) == ([3, 4], 2)
        return answer([5, 6], [-0.1, -0.2])

    async def wrong(prompt: list[int], sampling: SamplingParams) -> Answer:
        return answer([5, 7], [-0.1, -0.2])

    await check_launch(right, subject(), records, lambda *_: None)
    with pytest.raises(SelfTestError, match=r"'Who are you\?', token 2 is 7 .* 6\b"):
        await check_launch(wrong, subject(), records, lambda *_: None)
    assert not list(records.iterdir())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "there are none"),
        (b'{"model_digest":"sha256:bb","tolerance":{},"answers":[]}', "they are of sha256:bb"),
        (b'{"model_digest"', "cannot be read"),
    ],
)
async def test_a_bundled_model_without_known_answers_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    why: str,
) -> None:
    """It is asked the fixed prompt, as any other checkpoint, but not in silence."""
    path = tmp_path / "answers.json"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(launch_check, "read_known", lambda: answers.read_known(path))

    async def generate(prompt: list[int], sampling: SamplingParams) -> Answer:
        return answer([7] * sampling.max_tokens, [-1.0] * sampling.max_tokens)

    await check_launch(generate, subject(), tmp_path, lambda *_: None)
    assert capsys.readouterr().err == ""
    await check_launch(generate, subject(bundled=True), tmp_path, lambda *_: None)
    (line,) = capsys.readouterr().err.splitlines()
    assert "sha256:aa" in line
    assert why in line


def test_the_known_answers_are_of_the_bundled_model() -> None:
    """Both are committed together: without them a launch and `ingot selftest` could compare nothing."""
    known = answers.read_known()
    assert known.model_digest == checkpoint_digest(answers.MODEL)
    assert [each.question for each in known.answers] == selftest_questions()


def test_record_and_replay_through_a_running_engine(tmp_path: Path) -> None:
    """`ingot selftest` finds that an engine answers as it did, and says so to people and to programs. Without an
    address it asks the engine of its state folder."""
    home = tmp_path / "home"
    with engine(home) as (_, url):
        wait_for("the engine is ready", lambda: fetch(f"{url}/health")[0] == 200)

        def selftest(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [*INGOT, "selftest", *arguments]
            return subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=120)

        path = tmp_path / "answers.json"
        recorded = selftest("--url", url, "--record", str(path))
        assert recorded.returncode == 0, recorded.stderr
        known = answers.read_known(path)
        assert known.answers
        assert all(each.question and each.token_ids for each in known.answers)
        table = selftest("--url", url)
        assert table.returncode == 0, table.stdout + table.stderr
        assert f"{len(known.answers)} of {len(known.answers)} answers match" in table.stdout
        told = selftest("--json")
        assert json.loads(told.stdout)["ok"] is True
        assert told.stderr == ""  # it asked the state folder's engine, and started none


def test_the_consoles_token_goes_to_the_engine_of_this_folder_only(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that somebody named is sent INGOT_API_KEY or nothing; so is what a dead engine left behind."""
    monkeypatch.delenv("INGOT_API_KEY", raising=False)
    home.console_token.write_text("secret\n")
    own = "http://127.0.0.1:8123"
    assert key_for(own, home) is None
    lock = OwnerLock(home.lock)
    for host in ("0.0.0.0", "127.0.0.1"):
        lock.sign(Owner(pid=os.getpid(), host=host, port=8123, started=0.0))
        assert key_for(own, home) == front_door_token(home)
        for url in ("http://127.0.0.1:8124", "http://example.org:8123", "http://127.0.0.1", "https://127.0.0.1:8123"):
            assert key_for(url, home) is None
    monkeypatch.setenv("INGOT_API_KEY", "mine")
    assert key_for("http://example.org:8123", home) == "mine"
    monkeypatch.delenv("INGOT_API_KEY")
    name = home.lock.read_bytes()
    lock.release()
    home.lock.write_bytes(name)  # its holder was killed: the name stays
    assert key_for(own, home) is None


def test_an_engine_that_ends_early_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has an address, and before it is ready."""
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(CannotReplayError, match="exit status 1"), temporary_engine():
        pass
    with pytest.raises(CannotReplayError, match=r"http://127\.0\.0\.1:9"):
        wait_ready("http://127.0.0.1:9")


class OtherServer(http.server.BaseHTTPRequestHandler):
    answer = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None:
        """Quietly."""


@pytest.mark.parametrize("answer", [b"<html>", b'{"data":[]}', b'{"data":[{"id":"x"}]}', b"[]"])
def test_what_is_no_engine_of_ours_is_reported(answer: bytes) -> None:
    """Another web server, or another engine."""
    handler = type("Handler", (OtherServer,), {"answer": answer})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(CannotReplayError, match=rf"127\.0\.0\.1:{server.server_port}"):
            Engine(f"http://127.0.0.1:{server.server_port}").served()
    with pytest.raises(CannotReplayError, match=r"http://127\.0\.0\.1:port"):
        Engine("http://127.0.0.1:port")


def test_without_an_engine_it_says_so(tmp_path: Path) -> None:
    """An address that was given is not replaced by an engine of its own."""
    command = [*INGOT, "selftest", "--url", "http://127.0.0.1:9"]
    done = subprocess.run(command, env=environment(tmp_path / "home"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "http://127.0.0.1:9" in done.stderr
