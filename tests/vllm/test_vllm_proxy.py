"""Requests through the front door to vLLM: let in by our keys, passed on unchanged, told clearly when vLLM is gone."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from appliance.serving.proxy import MAX_BODY_BYTES, POST
from tests.running import fetch, wait_for
from tests.vllm.real import PROFILE, Engine, front_door
from tests.vllm.stand_in import install

STREAM = {"model": "real", "prompt": "x", "max_tokens": 3, "stream": True}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("stand-in"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Iterator[Engine]:
    with front_door(
        tmp_path_factory.mktemp("door"), PROFILE, str(program), FAKE_VLLM=json.dumps({"waits_s": 0.02})
    ) as engine:
        engine.wait("ready", timeout_s=30)
        yield engine


def ask(
    engine: Engine, path: str, body: bytes | str, method: str = "POST", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    address = urlsplit(engine.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, {"content-type": "application/json", **named})
    answer = connection.getresponse()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def test_a_stream_arrives_byte_for_byte(engine: Engine) -> None:
    status, headers, body = ask(engine, "/v1/completions", json.dumps(STREAM), x_request_id="abc")
    frames = [b"data: " + json.dumps({"choices": [{"text": f" {n}"}]}).encode() + b"\n\n" for n in range(3)]
    assert (status, body) == (200, b"".join(frames) + b"data: [DONE]\n\n")
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (headers["server"], headers["x-request-id"]) == ("ingot", "abc")


def test_pieces_arrive_as_they_are_generated(engine: Engine, tmp_path: Path) -> None:
    """Not all at the end: the engine is held after the first until that has arrived."""
    go_on = tmp_path / "go-on"
    address = urlsplit(engine.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
    connection.request("POST", "/v1/completions", json.dumps(STREAM | {"user": str(go_on)}))
    answer = connection.getresponse()
    assert answer.read1(4096) == b'data: {"choices": [{"text": " 0"}]}\n\n'
    go_on.touch()
    assert answer.read().endswith(b"data: [DONE]\n\n")


def test_a_whole_answer_and_vllms_own_errors_are_passed_on(engine: Engine) -> None:
    status, headers, body = ask(engine, "/v1/completions", json.dumps(STREAM | {"stream": False}))
    assert (status, json.loads(body)["choices"][0]["text"]) == (200, " 2")
    assert headers["content-length"] == str(len(body))
    status, _, body = ask(engine, "/v1/completions", json.dumps(STREAM | {"model": "other"}))
    assert status == 400
    assert "other" in json.loads(body)["error"]["message"]


def test_of_the_headers_only_those_that_matter_are_passed_on(engine: Engine) -> None:
    """A client's key is ours to judge, and none of vLLM's business."""
    status, _, body = ask(
        engine, "/tokenize?a=b%20c", "{}", authorization="Bearer secret", cookie="a=b", x_data_parallel_rank="1"
    )
    told = json.loads(body)
    assert status == 200
    assert told["seen"] == ["accept-encoding", "connection", "content-length", "content-type", "host"][1:]
    assert told["target"] == "/tokenize?a=b%20c"


def test_slashes_too_many_make_no_other_path(engine: Engine) -> None:
    assert ask(engine, "/v1//completions/", json.dumps(STREAM))[2].endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path",
    [
        "/collective_rpc", "/sleep", "/wake_up", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/start_profile",
        "/reset_prefix_cache", "/server_info", "/update_weights", "/invocations", "/scale_elastic_ep", "/docs",
        "/openapi.json", "/v1/responses/resp_1", "/inference/v1/generate", "/v1/completions/render", "/pause",
    ],
)  # fmt: skip
def test_what_changes_or_shows_the_engine_is_not_there(engine: Engine, path: str, method: str) -> None:
    assert ask(engine, path, "{}", method)[0] in (404, 405)


def test_the_list_holds_no_route_that_changes_the_engine() -> None:
    words = ("lora", "sleep", "wake", "rpc", "profile", "reset", "weight", "pause", "abort", "scale", "server", "dev")
    assert not [path for path in POST for word in words if word in path]


def test_models_are_told_in_our_words(engine: Engine) -> None:
    """Without the folder that vLLM would show."""
    status, answer = fetch(f"{engine.url}/v1/models")
    assert status == 200
    [model] = answer["data"]
    assert (model["id"], model["max_model_len"], model["owned_by"]) == ("real", 480, "ingot")
    assert "/secret/place" not in json.dumps(answer)
    assert fetch(f"{engine.url}/v1/models/real")[0] == 200
    assert fetch(f"{engine.url}/v1/models/other")[0] == 404


def test_keys_are_ours(engine: Engine) -> None:
    """As soon as there is one, and on every path that is passed on."""
    keys = engine.home / "active" / "keys.json"
    hashed = hashlib.sha256(b"right").hexdigest()
    keys.write_text(json.dumps({"keys": [{"id": "1", "name": "one", "sha256": hashed}]}))
    try:
        for path in sorted(POST):
            status, headers, body = ask(engine, path, "{}")
            assert (status, headers["www-authenticate"]) == (401, "Bearer"), path
            assert json.loads(body)["error"]["code"] == "invalid_api_key"
        assert ask(engine, "/tokenize", "{}", authorization="Bearer wrong")[0] == 401
        assert ask(engine, "/tokenize", "{}", authorization="Bearer right")[0] == 200
    finally:
        keys.unlink()


def test_a_page_of_another_site_is_refused_without_keys(engine: Engine) -> None:
    assert ask(engine, "/v1/completions", "{}", origin="https://elsewhere.example")[0] == 403


def test_a_body_that_is_too_large_is_refused_unread(engine: Engine) -> None:
    address = urlsplit(engine.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as sock:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {MAX_BODY_BYTES + 1}\r\n\r\n"
        sock.sendall(head.encode())
        assert b" 413 " in sock.recv(4096)


def figure(engine: Engine, name: str) -> float:
    with urllib.request.urlopen(f"{engine.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"ingot:{name} "))


def test_vllm_stops_when_the_client_hangs_up(engine: Engine) -> None:
    """Whether it has begun to read or not: nobody waits for what is generated then. It counts as an abort at once,
    and not as served."""
    for reads in (True, False):
        aborted, served = figure(engine, "request_aborted_total"), figure(engine, "e2e_request_latency_seconds_count")
        before = engine.log().count("client hung up")
        address = urlsplit(engine.url)
        sock = socket.create_connection((address.hostname, address.port), timeout=10)
        body = json.dumps(STREAM | {"max_tokens": 500}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        if reads:
            sock.recv(10)
        else:
            wait_for("vLLM generates", lambda: engine.state()["load"]["running"] == 1, 10)
        sock.close()
        wait_for("vLLM notices it", lambda: engine.log().count("client hung up") > before, 5)  # noqa: B023
        wait_for("it is an abort", lambda: figure(engine, "request_aborted_total") == aborted + 1, 1)  # noqa: B023
        assert figure(engine, "e2e_request_latency_seconds_count") == served


def test_many_clients_at_a_time_get_each_their_own(engine: Engine) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> int:
        _, _, body = ask(engine, "/v1/completions", json.dumps(STREAM | {"max_tokens": number}))
        return body.count(b'"text"')

    numbers = [1 + index % 17 for index in range(60)]
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(one, numbers)) == numbers


def test_an_answer_that_breaks_off_ends_in_a_clear_error(tmp_path: Path, program: Path) -> None:
    """As a frame of its own, though vLLM was cut off in the middle of one; then 503, with the reason."""
    with front_door(tmp_path, PROFILE, str(program), FAKE_VLLM=json.dumps({"breaks": 2})) as engine:
        engine.wait("ready", timeout_s=30)
        status, _, body = ask(engine, "/v1/completions", json.dumps(STREAM))
        frames = [frame for frame in body.decode().split("\n\n") if frame]
        assert (status, len(frames)) == (200, 4)
        error: dict[str, Any] = json.loads(frames[-1].removeprefix("data: "))["error"]
        assert error["code"] == "engine_failed"
        assert "SIGKILL" in error["message"]
        assert figure(engine, "e2e_request_latency_seconds_count") == 0, "it was not served"
        engine.wait("failed", timeout_s=30)
        status, _, body = ask(engine, "/v1/completions", json.dumps(STREAM))
        assert status == 503
        assert "SIGKILL" in json.loads(body)["error"]["message"]


def test_while_vllm_starts_a_request_is_told_to_wait(tmp_path: Path, program: Path) -> None:
    with front_door(tmp_path, PROFILE, str(program), FAKE_VLLM=json.dumps({"hangs": 3})) as engine:
        engine.wait("starting", timeout_s=30)
        status, headers, body = ask(engine, "/v1/chat/completions", "{}")
        assert (status, headers["retry-after"]) == (503, "1")
        assert "starting" in json.loads(body)["error"]["message"]
        status, headers, body = ask(engine, "/v1/messages", "{}")
        assert (status, headers["retry-after"]) == (503, "1")
        assert json.loads(body)["error"]["type"] == "api_error", "in Anthropic's shape"


def test_a_path_that_vllm_lacks_with_this_model_is_refused_in_its_apis_shape(engine: Engine) -> None:
    status, _, body = ask(engine, "/v1/embeddings", '{"input": "x"}')
    assert (status, json.loads(body)["error"]["code"]) == (404, "not_with_this_model")
