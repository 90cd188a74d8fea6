"""`ingot bench` as a person runs it: reports, exit statuses, and what a server may refuse."""

from __future__ import annotations

import asyncio
import contextlib
import html.parser
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from appliance.bench.bench_command import bench
from tests.bench import stand_in
from tests.running import INGOT, free_port


class Server(threading.Thread):
    """The stand-in, with what a test changes of it; `bodies` are the completions that it was asked for."""

    def __init__(self, models: Any = stand_in.MODELS, wait_s: float = 0) -> None:
        super().__init__(daemon=True)
        self.models: Any = models
        self.refuse: dict[str, str] = {}  # field -> message
        self.status, self.headers, self.message = 200, "", "no"
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self._wait_s = wait_s
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self.url = ""

    def run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ended = asyncio.Event()
        self._listening.set()
        async with server:
            await self._ended.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.keys.append(head.partition("authorization: ")[2].partition("\r\n")[0])
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            body = json.loads(await reader.readexactly(length) or b"{}")
            await self._respond(head, body, writer)
        writer.close()

    async def _respond(self, head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        error = {"error": {"message": self.message}}
        if self.status != 200:
            stand_in.reply(writer, self.status, error, self.headers)
        elif "/v1/models" in head:
            stand_in.reply(writer, 404 if self.models is None else 200, self.models)
        elif refused := [name for name in self.refuse if name in body]:
            stand_in.reply(writer, 400, {"error": {"message": self.refuse[refused[0]]}})
        else:
            self.bodies.append(body)
            body.setdefault("max_tokens", body.get("max_completion_tokens", 1))
            if self._wait_s:
                await stand_in.stream(writer, [stand_in.event(body, "a")] * body["max_tokens"], self._wait_s)
            else:
                await stand_in.respond(writer, body)

    def __enter__(self) -> Server:
        self.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self.join(10)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def run(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(bench, [str(each) for each in arguments], env={"INGOT_API_KEY": "", **environment})


def told(result: Result) -> dict[str, Any]:
    assert result.exit_code in (0, 1), result.output
    return dict(json.loads(result.stdout))


SHORT = ("--requests", 6, "--concurrency", 2, "--output-tokens", 5, "--input-tokens", 40, "--json", "-")


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_closed_loop_is_reported(server: Server, api: str):
    report = told(run(server.url, "--api", api, "--warmup", 3, *SHORT))
    assert (report["model"], report["api"], report["load"]["loop"]) == ("m", api, "closed")
    assert (report["requests"], report["completed"], report["failed"], report["unfinished"]) == (6, 6, 0, 0)
    assert (report["output_tokens"], report["prompt_tokens"]) == (30, 240)  # the stand-in counts words
    assert report["latency_s"]["time_to_first_token"]["count"] == 6
    assert report["latency_s"]["inter_token"]["count"] == 24
    assert sum(report["throughput"]["output_tokens"]) == pytest.approx(30)
    assert len(server.bodies) == 2 + 3 + 6
    assert all(body["stream"] and body["ignore_eos"] for body in server.bodies)


def test_an_open_loop_is_reported(server: Server):
    report = told(run(server.url + "/v1/", "--rate", 100, "--arrivals", "constant", *SHORT))
    load = report["load"]
    assert (load["loop"], load["rate"], load["arrivals"], load["concurrency"]) == ("open", 100, "constant", 2)
    assert report["completed"] == 6


def test_the_same_seed_asks_the_same_prompts_and_no_prompt_twice(server: Server):
    for seed in (1, 1, 2):
        run(server.url, "--seed", seed, *SHORT)
    prompts = [body["prompt"] for body in server.bodies]
    first, again, other = (prompts[at + 2 : at + 8] for at in (0, 8, 16))
    assert sorted(first) == sorted(again)
    assert len({*first, *other}) == 12


def test_without_a_seed_each_run_has_its_own_and_the_report_names_it(server: Server):
    first, second = told(run(server.url, *SHORT)), told(run(server.url, *SHORT))
    assert len({body["prompt"] for body in server.bodies}) == 2 * (2 + 6)
    again = told(run(server.url, "--seed", first["load"]["seed"], *SHORT))
    assert again["load"]["seed"] == first["load"]["seed"] != second["load"]["seed"]
    prompts = [body["prompt"] for body in server.bodies]
    assert sorted(prompts[2:8]) == sorted(prompts[18:24])
    assert str(first["load"]["seed"]) in run(server.url, "--seed", first["load"]["seed"], *SHORT[:-2]).stdout


def test_the_prompts_of_a_file_are_asked_in_turn(server: Server, tmp_path: Path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n\n"two"\n{"messages": [{"role": "user", "content": "three"}]}\n')
    options = ("--prompts", file, "--api", "chat", "--requests", 6, "--concurrency", 1, "--json", "-")
    report = told(run(server.url, *options))
    assert report["load"]["input_tokens"] is None
    assert [body["messages"][0]["content"] for body in server.bodies[2:]] == ["one", "two", "three"] * 2


@pytest.mark.parametrize(
    ("refusals", "left"),
    [
        ({"ignore_eos": "extra fields are not permitted: ignore_eos"}, {"stream_options", "temperature"}),
        ({"stream_options": "unknown field"}, {"temperature"}),
        ({"temperature": "temperature may only be 1"}, {"ignore_eos", "stream_options"}),
        (dict.fromkeys(("ignore_eos", "stream_options", "temperature"), "no"), set()),
    ],
)
def test_fields_that_a_server_refuses_are_left_out_and_the_report_says_so(server: Server, refusals, left):
    server.refuse = refusals
    report = told(run(server.url, *SHORT))
    optional = {"ignore_eos", "stream_options", "temperature"}
    assert {name for name in server.bodies[-1] if name in optional} == left
    for name in optional - left:
        assert any(name in note for note in report["notes"])


def test_a_server_that_wants_max_completion_tokens_gets_it(server: Server):
    server.refuse = {"max_tokens": "Unsupported parameter: use 'max_completion_tokens' instead."}
    report = told(run(server.url, "--api", "chat", *SHORT))
    assert report["output_tokens"] == 30
    assert all("max_completion_tokens" in body for body in server.bodies)


def test_failures_are_told_by_kind_and_make_the_exit_status_one(server: Server, monkeypatch):
    def fail_later(writer, body, respond=stand_in.respond):
        if len(server.bodies) <= 4:
            return respond(writer, body)
        return stand_in.stream(writer, [{"error": {"message": "out of memory"}}])

    monkeypatch.setattr(stand_in, "respond", fail_later)
    result = run(server.url, *SHORT)
    report = told(result)
    assert (result.exit_code, report["completed"], report["failed"]) == (1, 2, 4)
    assert report["failures"] == [{"kind": "error in the stream", "count": 4, "first_message": "out of memory"}]


class Page(html.parser.HTMLParser):
    """Counts elements, and what would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [str(value) for name, value in attributes if name in ("src", "href")]


def test_the_page_needs_nothing_else_and_escapes_what_servers_say(server: Server, tmp_path: Path):
    server.models = {"data": [{"id": "<script>m</script>"}]}
    out, data = tmp_path / "report.html", tmp_path / "report.json"
    result = run(server.url, *SHORT[:-2], "--html", out, "--json", data)
    assert result.exit_code == 0, result.output
    assert json.loads(data.read_text())["completed"] == 6
    page = Page(out.read_text())
    assert page.tags.count("svg") == 3
    assert "script" not in page.tags
    assert page.fetched == []


def test_a_report_that_cannot_be_written_is_still_printed(server: Server, tmp_path: Path):
    out = tmp_path / "report.json"
    out.symlink_to("/dev/full")
    result = run(server.url, *SHORT[:-2], "--json", out)
    assert result.exit_code == 1
    assert str(out) in result.stderr
    assert server.url in result.stdout


def test_a_page_of_a_load_that_got_no_answer_is_a_page(server: Server, tmp_path: Path, monkeypatch):
    def fail(writer, body, respond=stand_in.respond):
        return respond(writer, body) if len(server.bodies) <= 2 else stand_in.stream(writer, [])

    monkeypatch.setattr(stand_in, "respond", fail)
    result = run(server.url, *SHORT[:-2], "--html", tmp_path / "report.html")
    assert result.exit_code == 1, result.output
    assert "svg" not in Page((tmp_path / "report.html").read_text()).tags


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (503, "retry-after: 7\r\n", "7 s"),
        (401, "", "--key-file"),
        (404, "", "404"),
        (500, "", "HTTP 500"),
        (303, "location: /login\r\n", "/login"),
        (302, "", "302"),
    ],
)
def test_a_server_that_cannot_be_measured_is_told_in_one_line(server: Server, status: int, headers: str, said: str):
    server.status, server.headers = status, headers
    result = run(server.url)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("models", [{"data": []}, {"data": [{"id": "a"}, {"id": "b"}]}, [], {"data": 3}, "x"])
def test_a_server_without_one_model_is_told_in_one_line(server: Server, models: Any):
    server.models = models
    result = run(server.url)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


def test_a_model_that_is_not_served_and_a_load_beyond_its_context_are_told(server: Server):
    for options in (("--model", "other"), ("--input-tokens", 4000, "--output-tokens", 97)):
        result = run(server.url, *options)
        assert result.exit_code == 2
        assert len(server.bodies) == 0


def test_a_server_without_a_list_of_models_is_asked_for_the_one_that_is_named(server: Server):
    server.models = None
    assert run(server.url, *SHORT).exit_code == 2
    assert told(run(server.url, "--model", "mine", *SHORT))["model"] == "mine"


def test_a_server_that_never_answers(monkeypatch):
    monkeypatch.setattr("appliance.bench.server.MODELS_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = run(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("host", ["a" * 70, "no-such-host.invalid"])
def test_a_host_that_is_not_there(host: str):
    result = run(f"http://{host}")
    assert result.exit_code == 2
    assert host in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_nobody_listens():
    result = run(f"http://127.0.0.1:{free_port()}")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


def test_the_key_comes_from_a_file_or_the_environment(server: Server, tmp_path: Path):
    (tmp_path / "key").write_text("from-file\n")
    assert run(server.url, *SHORT, "--key-file", tmp_path / "key").exit_code == 0
    assert set(server.keys) == {"Bearer from-file"}
    server.keys.clear()
    assert run(server.url, *SHORT, INGOT_API_KEY="from-environment").exit_code == 0
    assert set(server.keys) == {"Bearer from-environment"}
    server.keys.clear()
    run(server.url, *SHORT)
    assert set(server.keys) == {""}


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["ftp://host"], "ftp://host"),
        (["localhost:8000"], "localhost:8000"),
        (["http://host:99999"], "99999"),
        (["http://host/?key=1"], "?key=1"),
        (["URL", "--rate", "0"], "0"),
        (["URL", "--rate", "nan"], "nan"),
        (["URL", "--seconds", "-1"], "-1"),
        (["URL", "--concurrency", "0"], "0"),
        (["URL", "--arrivals", "constant"], "constant"),
        (["URL", "--requests", "0"], "0"),
        (["URL", "--output-tokens", "0"], "0"),
        (["URL", "--prompts", "FOLDER/absent"], "absent"),
        (["URL", "--prompts", "FOLDER/empty"], "empty"),
        (["URL", "--prompts", "FOLDER/bad"], "line 2"),
        (["URL", "--prompts", "FOLDER/chat"], "line 1"),
        (["URL", "--prompts", "FOLDER/good", "--input-tokens", "5"], "--input-tokens"),
        (["URL", "--key-file", "FOLDER/absent"], "absent"),
        (["URL", "--key-file", "FOLDER/empty"], "empty"),
        (["URL", "--key-file", "FOLDER/bad"], "bad"),
        (["URL", "--json", "FOLDER/absent/x.json"], "absent"),
        (["URL", "--html", "FOLDER"], "FOLDER"),
        (["URL", "--html", "-"], "--html -"),
        (["URL", "--json", "FOLDER/x", "--html", "FOLDER/../FOLDER_NAME/x"], "FOLDER_NAME/x"),
    ],
)
def test_a_bad_flag_is_refused_with_its_value_before_anything_is_asked(
    server: Server, tmp_path: Path, arguments: list[str], value: str
):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bad").write_text('{"prompt": "a"}\nno json\n')
    (tmp_path / "chat").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    (tmp_path / "good").write_text('{"prompt": "a"}\n')
    given = [
        each.replace("URL", server.url).replace("FOLDER_NAME", tmp_path.name).replace("FOLDER", str(tmp_path))
        for each in arguments
    ]
    result = run(*given)
    assert result.exit_code == 2
    assert value.replace("FOLDER_NAME", tmp_path.name).replace("FOLDER", str(tmp_path)) in result.stderr
    assert server.bodies == []
    assert server.keys == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_with_the_report_of_what_was_measured(tmp_path: Path, number: signal.Signals):
    with Server(wait_s=0.01) as server:
        command = [*INGOT, "bench", server.url, "--seconds", "60", "--concurrency", "2", "--output-tokens", "3"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("INGOT_")}
        with subprocess.Popen([*command, "--json", "-"], stdout=subprocess.PIPE, env=environment) as process:
            for _ in range(2000):
                if len(server.bodies) > 12:
                    break
                threading.Event().wait(0.01)
            process.send_signal(number)
            out, _ = process.communicate(timeout=20)
        assert process.returncode == 130
        report = json.loads(out)
        assert report["interrupted"]
        assert report["completed"] >= 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_before_the_load_ends_at_once(number: signal.Signals):
    """While the server is asked what it serves."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen([*INGOT, "bench", url], stderr=subprocess.PIPE) as process:
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(1000)
                process.send_signal(number)
                _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert len(err.splitlines()) == 1


def test_it_imports_neither_torch_nor_the_console():
    code = "import appliance.bench.bench_command, sys; print({'torch', 'console', 'rich', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
