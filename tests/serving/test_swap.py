"""A request names the model of a profile that does not run: it waits until that one does."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from appliance.front_door_token import digest
from appliance.home import Home
from appliance.serving.ollama.answers import OllamaModels
from appliance.serving.on_request.begun_stream import BegunStream
from appliance.serving.on_request.descriptions import Descriptions
from appliance.serving.on_request.startable_profiles import StartableProfiles
from appliance.serving.openapi import answers
from tests.serving.test_drain import TOKEN, drain
from tests.serving.two_models import Asking, choosing_door, complete, events, launches, metric, publish
from tests.supervisor.scripted import Door
from tests.tiny import write_checkpoint


def test_naming_a_model_starts_it_and_naming_the_first_one_brings_that_back(home: Home) -> None:
    with choosing_door(home, "other") as door:
        first = complete(door, "other")
        assert first.status_code == 200
        assert first.json()["model"] == "other"
        assert door.state()["launch"]["profile"] == "other"
        assert complete(door, "tiny").json()["model"] == "tiny"
        assert metric(door, 'model_swaps_total{outcome="ready"}') == 2
        assert metric(door, "model_swap_seconds_count") == 2
    begun = [(record.profile, record.requested_by, record.state) for record in launches(home)]
    assert begun == [("tiny", None, "stopped"), ("other", "no key", "stopped"), ("tiny", "no key", "stopped")]


def test_an_unknown_model_is_not_found_and_no_model_means_the_running_one(home: Home) -> None:
    with choosing_door(home, "other") as door:
        refused = complete(door, "elsewhere")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        body = {"prompt": "hello", "max_tokens": 1}
        assert door.http.post("/v1/completions", json=body).json()["model"] == "tiny"
    assert len(launches(home)) == 1


BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    "/v1/responses": {"input": "hello", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    "/api/chat": {"messages": [{"role": "user", "content": "hello"}], "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "hello", "options": {"num_predict": 2}},
}


def test_each_api_waits_with_or_without_a_stream(home: Home) -> None:
    with choosing_door(home, "other") as door:
        models = ("other", "tiny")
        for number, (path, body) in enumerate(BODIES.items()):
            for stream in (False, True):
                model = models[(2 * number + stream) % 2]
                answer = door.http.post(path, json={**body, "model": model, "stream": stream})
                assert answer.status_code == 200, (path, answer.text)
                assert door.state()["launch"]["profile"] == model


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_says_how_far_the_start_is(home: Home, path: str) -> None:
    """Comments where the API's streams have them; lines of JSON get an empty part only after a longer wait."""
    with choosing_door(home, "other", of={"other": {"load_s": 1.6}}) as door:
        body = {**BODIES[path], "model": "other", "stream": True}
        with door.http.stream("POST", path, json=body) as response:
            assert response.status_code == 200
            lines = list(response.iter_lines())
    comments = [line for line in lines if line.startswith(": ")]
    if path.startswith("/api/"):
        assert not comments
        assert all(json.loads(line)["model"] == "other" for line in lines)
        assert json.loads(lines[-1])["done"]
    else:
        assert any("other" in comment and "50%" in comment for comment in comments)
        assert events(lines)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed", "/api/embeddings"])
def test_embeddings_wait_without_a_stream(home: Home, path: str) -> None:
    """Even of a request that asks for one, for longer than a stream's first comment takes."""
    text = "prompt" if path == "/api/embeddings" else "input"
    with choosing_door(home, "other", of={"other": {"load_s": 1.4}}) as door:
        asked = door.http.post(path, json={"model": "other", text: "hello", "stream": True})
        assert asked.headers["content-type"] == "application/json"
        assert door.state()["launch"]["profile"] == "other"
        assert door.http.post(path, json={"model": "tiny", text: "hello"}).status_code == 200
        assert door.state()["launch"]["profile"] == "tiny"


def test_the_running_model_finishes_its_requests_first(home: Home) -> None:
    """One that comes during the drain waits for its model's next turn."""
    with choosing_door(home, "other", token_s=0.05) as door:
        with door.http.stream(
            "POST", "/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 30, "stream": True}
        ) as running:
            lines = running.iter_lines()
            assert "choices" in next(lines)
            other = Asking(door, "other")
            door.wait("draining")
            late = Asking(door, "tiny")
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert events(rest)[-1]["choices"][0]["finish_reason"] == "length"
        assert other.answer().json()["model"] == "other"
        assert late.answer().json()["model"] == "tiny"
    assert [record.profile for record in launches(home)] == ["tiny", "other", "tiny"]


def test_a_drain_has_a_limit(home: Home) -> None:
    with (
        choosing_door(home, "other", running={"drain-within": 0.3}, token_s=0.05) as door,
        door.http.stream(
            "POST", "/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 5000, "stream": True}
        ) as running,
    ):
        lines = running.iter_lines()
        assert "choices" in next(lines)
        assert complete(door, "other").status_code == 200
        assert events([line for line in lines if line])[-1]["error"]["code"] == "engine_failed"


def test_a_start_that_fails_is_answered_with_its_cause_and_what_ran_before_comes_back(home: Home) -> None:
    with choosing_door(home, "other", of={"other": {"at": "configured", "do": "raise"}}) as door:
        failed = complete(door, "other")
        assert failed.status_code == 503
        error = failed.json()["error"]
        assert error["code"] == "model_not_started"
        assert "flux capacitor" in error["message"]
        assert int(failed.headers["retry-after"]) > 10
        assert door.wait("ready")["launch"]["profile"] == "tiny"
        assert complete(door, "tiny").status_code == 200
        again = complete(door, "other")
        assert again.json()["error"]["code"] == "model_not_started"
        assert metric(door, 'model_swaps_total{outcome="failed"}') == 1
    told = launches(home)
    assert [record.profile for record in told] == ["tiny", "other", "tiny"]
    assert told[2].returned_after == told[1].id
    assert told[1].diagnosis is not None


@pytest.mark.parametrize("path", BODIES)
def test_a_failure_after_the_status_ends_the_stream_in_the_api_s_own_shape(home: Home, path: str) -> None:
    with choosing_door(home, "other", of={"other": {"at": "loaded", "do": "raise", "load_s": 1.4}}) as door:
        answer = door.http.post(path, json={**BODIES[path], "model": "other", "stream": True})
    if path.startswith("/api/"):
        assert answer.status_code == 503
        assert "flux capacitor" in answer.json()["error"]
        return
    assert answer.status_code == 200
    (told,) = events(answer.text.splitlines())
    error = told if path == "/v1/responses" else told["error"]
    assert error["code"] == "model_not_started"
    assert ("event: error" in answer.text) == (path in ("/v1/messages", "/v1/responses"))


def test_a_request_that_cannot_be_read_replaces_no_model(home: Home) -> None:
    """It is answered with a status, streamed or not, in its API's own shape."""
    wrong: dict[str, dict[str, Any]] = {
        **{path: {"max_tokens": "many"} for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages")},
        "/v1/responses": {"max_output_tokens": 0, "input": "hi"},
        **{path: {"options": 5} for path in ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings")},
        "/v1/embeddings": {},
    }
    with choosing_door(home, "other") as door:
        for path, body in wrong.items():
            for stream in (False, True):
                refused = door.http.post(path, json={"model": "other", "stream": stream, **body})
                assert refused.status_code == 400, (path, refused.text)
                error = refused.json()["error"]
                assert isinstance(error, str) if path.startswith("/api/") else error["param"]
        assert door.state()["launch"]["profile"] == "tiny"
    assert len(launches(home)) == 1


def test_what_preflight_refuses_leaves_the_running_model_alone(home: Home) -> None:
    with choosing_door(home, "other") as door:
        (home.models / "other" / "config.json").unlink()
        before = door.state()["launch"]["id"]
        refused = complete(door, "other")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_not_started")
        assert door.state()["launch"]["id"] == before
        assert complete(door, "tiny").status_code == 200
        assert metric(door, 'model_swaps_total{outcome="refused"}') == 1
    attempt = launches(home)[-1]
    assert (attempt.attempt, attempt.requested_by) == (True, "no key")


def test_a_turn_has_a_least_length_in_which_the_running_model_is_served(home: Home) -> None:
    with choosing_door(home, "other", running={"min-runtime": 1.5}) as door:
        ready = door.state()["since"]
        other = Asking(door, "other")
        while time.time() < ready + 1.2:
            assert complete(door, "tiny").status_code == 200
        assert other.answer().status_code == 200
    swapped = launches(home)[1]
    assert swapped.started >= ready + 1.5


def test_two_models_at_once_are_started_in_the_order_of_the_requests(home: Home) -> None:
    with choosing_door(home, "other", "third", of={"other": {"load_s": 0.5}}) as door:
        first = Asking(door, "other")
        door.wait("draining", "preflight", "starting")
        others = [Asking(door, "third"), Asking(door, "third"), Asking(door, "other")]
        assert [asking.answer().json()["model"] for asking in (first, *others)] == ["other", "third", "third", "other"]
    assert [record.profile for record in launches(home)] == ["tiny", "other", "third"]


def test_nobody_waiting_any_more_calls_a_swap_off(home: Home) -> None:
    with choosing_door(home, "other", running={"min-runtime": 1.0}) as door:
        with pytest.raises(httpx.ReadTimeout):
            complete_within(door, "other", 0.3)
        time.sleep(1.2)
        assert metric(door, "num_requests_waiting_for_model") == 0
        assert complete(door, "tiny").status_code == 200
    assert len(launches(home)) == 1


def complete_within(door: Any, model: str, timeout_s: float) -> None:
    with httpx.Client(base_url=door.url, timeout=timeout_s, trust_env=False) as http:
        http.post("/v1/completions", json={"model": model, "prompt": "hello"})


def test_waiting_has_a_limit_in_time_and_in_number(home: Home) -> None:
    limits = {"max-wait": 1, "max-waiting": 1}
    with choosing_door(home, "other", limits=limits, running={"min-runtime": 600}) as door:
        waiting = Asking(door, "other")
        while not metric(door, "num_requests_waiting_for_model"):
            time.sleep(0.01)
        refused = complete(door, "other")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_waiting")
        late = waiting.answer()
        assert (late.status_code, late.json()["error"]["code"]) == (503, "waited_too_long")


def test_only_the_keys_that_the_profile_names_start_it(home: Home) -> None:
    with choosing_door(home, "other", limits={"api-keys": "laptop, ci"}) as door:
        refused = complete(door, "other")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "start_not_allowed")
        assert complete(door, "tiny").status_code == 200
    assert len(launches(home)) == 1


def test_a_profile_published_later_can_be_asked_for(home: Home) -> None:
    with choosing_door(home) as door:
        assert complete(door, "other").status_code == 404
        publish(home, "other")
        assert complete(door, "other").json()["model"] == "other"


def test_counting_tokens_starts_nothing(home: Home) -> None:
    with choosing_door(home, "other") as door:
        refused = door.http.post("/tokenize", json={"model": "other", "prompt": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_not_running")
    assert len(launches(home)) == 1


def test_a_stop_answers_those_that_wait(home: Home) -> None:
    """In the middle of a start, too: the front door ends at once."""
    with choosing_door(home, "other", of={"other": {"load_s": 60}}) as door:
        waiting = Asking(door, "other")
        while door.state()["launch"]["profile"] != "other":
            time.sleep(0.01)
        door.process.terminate()
        stopped = waiting.answer()
        assert (stopped.status_code, stopped.json()["error"]["code"]) == (503, "engine_not_ready")
        assert door.process.wait(10) == 0
    assert [record.state for record in launches(home)] == ["stopped", "stopped"]


def test_lists_name_all_models_and_say_which_one_runs(home: Home) -> None:
    with choosing_door(home, "other") as door:
        for running, idle in (("tiny", "other"), ("other", "tiny")):
            assert complete(door, running).status_code == 200
            listed = msgspec.json.decode(door.http.get("/v1/models").content, type=answers.ModelList).data
            assert [(model.id, model.running) for model in listed] == [(running, True), (idle, False)]
            assert listed[0].max_model_len == listed[1].max_model_len
            assert door.http.get(f"/v1/models/{idle}").json() == door.http.get("/v1/models").json()["data"][1]
            anthropic = door.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()["data"]
            assert [(model["id"], model["running"]) for model in anthropic] == [(running, True), (idle, False)]
            tags = msgspec.json.decode(door.http.get("/api/tags").content, type=OllamaModels).models
            assert [model.name for model in tags] == [f"{running}:latest", f"{idle}:latest"]
            assert tags[0].details == tags[1].details
            shown = door.http.post("/api/show", json={"model": idle}).json()
            assert shown["modelfile"] == f"FROM {idle}:latest"
            assert [model["name"] for model in door.http.get("/api/ps").json()["models"]] == [f"{running}:latest"]
        assert door.http.get("/v1/models/elsewhere").status_code == 404
    assert len(launches(home)) == 2


def test_a_model_that_cannot_be_described_is_listed_nevertheless(home: Home) -> None:
    with choosing_door(home, "other") as door:
        (home.models / "other" / "config.json").unlink()
        assert [model["id"] for model in door.http.get("/v1/models").json()["data"]] == ["tiny", "other"]
        assert len(msgspec.json.decode(door.http.get("/api/tags").content, type=OllamaModels).models) == 2


async def test_a_folder_that_cannot_be_read_costs_the_list_nothing_else(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **more: Any) -> None:
        raise PermissionError("the disk is gone")

    write_checkpoint(home.models / "tiny")
    publish(home, "other")
    monkeypatch.setattr("appliance.supervisor.preflight.run_preflight", fail)
    startable = StartableProfiles(home.startable).read()["other"]
    described = await Descriptions(home).of(startable, None)
    assert (described.told["id"], described.told["running"], described.shown) == ("other", False, {})


async def test_an_error_s_messages_may_leave_out_the_body(home: Home) -> None:
    """ASGI lets them."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {"type": "http", "path": "/v1/completions", "headers": []}
    begun = BegunStream("other", scope, send)
    messages: list[Any] = [
        {"type": "http.response.start", "status": 503},
        {"type": "http.response.body", "body": b'{"error": {"code": "too_late"}}', "more_body": True},
        {"type": "http.response.body"},
    ]
    for message in messages:
        await begun.pass_on(message)
    assert events(sent[-1]["body"].decode().splitlines())[0]["error"]["code"] == "too_late"
    assert not sent[-1]["more_body"]


@contextlib.contextmanager
def draining_for_another(home: Home, **script: Any) -> Iterator[tuple[Door, Asking, Asking]]:
    """The door, the running model's long request, and one for another model, for which that drains."""
    home.front_door_digest.write_text(digest(TOKEN))
    with choosing_door(home, "other", token_s=0.02, **script) as door:
        running = Asking(door, "tiny", max_tokens=400)
        while not door.state()["requests"]:
            time.sleep(0.01)
        other = Asking(door, "other")
        assert door.wait("draining")["replaced_by"] == "other"
        yield door, running, other


def test_a_stop_by_the_console_while_it_drains_for_another_model_comes_first(home: Home) -> None:
    with draining_for_another(home) as (door, running, other):
        drain(door, 0.3, "Restarted by admin")
        waited = other.answer()
        assert (waited.status_code, waited.json()["error"]["code"]) == (503, "engine_not_ready")
        assert "admin" in waited.json()["error"]["message"]
        stopped = door.wait("stopped")
        assert (stopped["launch"]["profile"], stopped["replaced_by"]) == ("tiny", None)
        assert running.answer().status_code == 502
        assert complete(door, "other").json()["error"]["code"] == "engine_not_ready"
    assert [record.profile for record in launches(home)] == ["tiny"]


def test_a_shutdown_while_it_drains_for_another_model(home: Home) -> None:
    with draining_for_another(home) as (door, _running, other):
        door.process.terminate()
        assert other.answer().status_code == 503
        assert door.process.wait(10) == 0
    assert [record.state for record in launches(home)] == ["stopped"]


def test_a_running_model_that_dies_while_it_drains_makes_room_nevertheless(home: Home) -> None:
    with draining_for_another(home) as (door, running, other):
        child = psutil.Process(door.process.pid).children()
        oldest = min(child, key=psutil.Process.create_time)
        oldest.kill()
        assert other.answer().json()["model"] == "other"
        assert running.answer().status_code == 502
    assert [(record.profile, record.state) for record in launches(home)] == [("tiny", "failed"), ("other", "stopped")]


def test_after_a_failure_another_model_may_be_asked_for_and_the_failed_one_not(home: Home) -> None:
    with choosing_door(home, "other") as door:
        for child in psutil.Process(door.process.pid).children():
            child.kill()
        door.wait("failed")
        assert complete(door, "tiny").json()["error"]["code"] == "engine_not_ready"
        assert complete(door, "other").json()["model"] == "other"
        assert complete(door, "tiny").json()["model"] == "tiny"


def test_a_stop_after_a_swap_leaves_its_requests_the_usual_time(home: Home) -> None:
    """The deadline of the swap's drain is past by then."""
    with choosing_door(home, "other", running={"drain-within": 0}, token_s=0.05) as door:
        assert complete(door, "other").status_code == 200
        last = Asking(door, "other", max_tokens=20)
        while not door.state()["requests"]:
            time.sleep(0.01)
        door.process.terminate()
        assert last.answer().json()["choices"][0]["finish_reason"] == "length"


def test_the_next_core_is_started_ahead_and_ends_with_the_front_door(home: Home) -> None:
    """One that was killed meanwhile is started anew."""
    with choosing_door(home, "other") as door:
        assert complete(door, "tiny").status_code == 200
        process = psutil.Process(door.process.pid)
        while len(process.children()) < 2:
            time.sleep(0.01)
        running, ahead = sorted(process.children(), key=psutil.Process.create_time)
        assert complete(door, "other").status_code == 200
        assert ahead.is_running()
        assert not running.is_running()
        while len(process.children()) < 2:
            time.sleep(0.01)
        next_one = max(process.children(), key=psutil.Process.create_time)
        next_one.kill()
        assert complete(door, "tiny").status_code == 200
        children = process.children()
    assert not any(child.is_running() for child in children)
    assert [record.state for record in launches(home)] == ["stopped"] * 3
