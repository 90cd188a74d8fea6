"""The engine in a container, where Docker fails: a daemon that breaks off, goes and comes back, hangs, refuses. What a
real daemon can be brought to is in tests/container/test_docker_control.py."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest

from console.engine_control.base import EngineControlError
from console.engine_control.docker import DockerControl, events_path
from tests.console.engine_promises import has, kept, opened, shows, until
from tests.console.fake_docker import EXITED, FakeDocker


@pytest.fixture
async def docker(tmp_path):
    made = FakeDocker(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def control(docker):
    made = DockerControl("ingot-engine", docker.environ)
    yield made
    await made.close()


def stamp(number: int) -> str:
    return f"2026-11-20T09:51:45.{number:09}Z"


async def test_each_call_is_the_one_that_the_gate_knows(control, docker):
    """By the container's name, with a bounded time to stop; nothing else is ever asked."""
    await control.status()
    await control.start()
    await control.restart()
    await control.stop()
    path = "/v1.44/containers/ingot-engine"
    calls = [f"GET {path}/json", f"POST {path}/start", f"POST {path}/restart?t=30", f"POST {path}/stop?t=30"]
    assert docker.asked == calls


async def test_a_stream_that_breaks_off_is_taken_up_where_it_was(control, docker):
    """Cut in the middle of a frame, between lines of the very same stamp: each line once, none lost."""
    for number in range(40):
        docker.wrote(stamp(number // 4), f"line {number}\n")
    docker.cut_after = 900
    async with kept(control.follow) as lines:
        await until(lambda: has(lines, "line 39"))
        docker.cut_after = 10
        docker.wrote(stamp(100), "line 40\n")
        await until(lambda: has(lines, "line 40"))
    assert [line.text for line in lines] == [f"line {number}" for number in range(41)]
    assert any("since=1795168305.00000000" in asked for asked in docker.asked)


async def test_a_daemon_that_restarts_loses_no_line(control, docker):
    """It goes, the engine's container with it, and both come back; then there is one story."""
    docker.wrote(stamp(1), "before\n")
    async with kept(control.follow) as lines:
        await until(lambda: has(lines, "before"))
        await docker.stop()
        docker.wrote(stamp(2), "the last words\n")
        docker.wrote(stamp(3), "after\n")
        docker.state["StartedAt"] = stamp(3)
        await docker.start()
        await until(lambda: has(lines, "after"))
    assert [line.text for line in lines] == ["before", "the last words", "after"]


async def test_another_container_of_that_name_is_read_from_its_beginning(control, docker):
    """Made anew on a machine whose clock was set back, its lines are older than the last one told."""
    docker.wrote(stamp(500), "of the first\n")
    async with kept(control.follow) as lines:
        await until(lambda: has(lines, "of the first"))
        docker.id, docker.lines = "another", []
        docker.wrote(stamp(7), "of the second\n")
        await docker.stop()
        await docker.start()
        await until(lambda: has(lines, "of the second"))


async def test_pieces_become_lines(control, docker):
    """Docker cuts a long line into pieces, and those of stdout and stderr come in between each other."""
    docker.wrote(stamp(1), "a long ")
    docker.wrote(stamp(2), "warning\n", source=2)
    docker.wrote(stamp(3), "line\n")
    async with kept(control.follow) as lines:
        await until(lambda: has(lines, "line"))
    assert [line.text for line in lines] == ["warning", "a long line"]


async def test_a_line_without_end_is_cut(control, docker):
    """A progress bar that never ends its line must not fill the memory."""
    for number in range(100):
        docker.wrote(stamp(number), "x" * 16000)
    docker.wrote(stamp(100), "\n")
    async with kept(control.follow) as lines:
        await until(lambda: has(lines, "xxx"))
    assert len(lines[0].text) == 1 << 16


async def test_a_container_with_a_terminal(control, docker):
    """Its log has no frames."""
    docker.media_type = "application/vnd.docker.raw-stream"
    docker.wrote(stamp(1), "one\r\n")
    docker.wrote(stamp(2), "two\r\n")
    async with kept(control.follow) as lines:
        await until(lambda: has(lines, "two"))
    assert [line.text for line in lines] == ["one", "two"]


async def test_events_go_on_after_a_daemon_that_restarts(control, docker):
    """Those in between are lost, as status() tells what came of them; one bad event ends nothing."""

    def happened(action: str) -> dict:
        return {"Action": action, "timeNano": 1, "Actor": {"Attributes": {"name": "ingot-engine", "exitCode": "1"}}}

    async with kept(control.events) as events:
        docker.events.put_nowait(happened("start"))
        await until(lambda: _count(events, 1))
        await docker.stop()
        await docker.start()
        await until(lambda: _asked(docker, "/events?", 2))
        docker.events.put_nowait({"Action": 5})  # taken by the stream that broke
        docker.events.put_nowait(happened("die"))
        docker.events.put_nowait(happened("die"))
        await until(lambda: _count(events, 2))
    assert [event.text for event in events][:2] == ["started", "ended: exit status 1"]
    assert docker.asked[0] == f"GET /v1.44{events_path('ingot-engine')}"


async def _asked(docker, call: str, times: int) -> bool:
    return sum(call in asked for asked in docker.asked) >= times


async def _count(items: list, number: int) -> bool:
    return len(items) >= number


async def test_a_daemon_that_hangs_is_told_in_time(control, docker, monkeypatch):
    """It accepts and never answers."""
    monkeypatch.setattr("console.engine_control.docker_api.ANSWERS_WITHIN_S", 0.3)
    docker.silent = True
    with pytest.raises(EngineControlError, match="no answer in time"):
        await asyncio.wait_for(control.status(), 15)


KILLED = EXITED | {"ExitCode": 137, "OOMKilled": True}


async def test_a_stop_that_failed_hides_no_later_end(control, docker):
    """The engine ran on; that it ran out of memory afterwards was not asked for."""
    docker.refuse["stop"] = (503, "The gate cannot reach Docker.")
    with pytest.raises(EngineControlError):
        await control.stop()
    docker.state |= KILLED
    status = await control.status()
    assert (status.out_of_memory, status.problem.id) == (True, "out-of-memory")


async def test_a_stop_says_nothing_of_a_run_that_somebody_else_began(control, docker):
    """Stopped here, started from a terminal, killed: the end that is told is that of the second run."""
    await control.stop()
    assert (await control.status()).running
    docker.state |= KILLED
    assert (await control.status()).out_of_memory


async def test_no_daemon_is_told_clearly(tmp_path):
    """Neither a trace nor silence: what cannot be reached, and where to look."""
    control = DockerControl("ingot-engine", {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"})
    for ask in (control.status, control.start, control.stop, control.restart):
        with pytest.raises(EngineControlError, match="DOCKER_HOST"):
            await ask()
    await control.close()


@pytest.mark.parametrize("host", ["ssh://admin@box", "npipe:////./pipe/docker_engine", "gate:2375", "tcp://"])
def test_an_address_that_cannot_be_used(host):
    """Named with its value, before anything is asked."""
    with pytest.raises(EngineControlError, match=f"DOCKER_HOST is '{host}'"):
        DockerControl("ingot-engine", {"DOCKER_HOST": host})


async def test_a_proxy_in_the_environment_is_not_asked(tmp_path, monkeypatch):
    """The gate is on a network of its own, which no proxy can reach."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    heard: list[str] = []

    async def serve(reader, writer):
        heard.append((await reader.readline()).decode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    control = DockerControl("ingot-engine", {"DOCKER_HOST": f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"})
    with pytest.raises(EngineControlError, match="gate"):
        await control.status()
    assert heard == ["GET /v1.44/containers/ingot-engine/json HTTP/1.1\r\n"]
    await control.close()
    server.close()


# ---- on the pages ---------------------------------------------------------------------------------------------------


async def test_a_removed_container_is_told_until_it_is_back(control, docker, config):
    """With the command that makes it anew; nothing has to be pressed afterwards."""
    docker.refuse["json"] = (404, "No such container: ingot-engine")
    async with opened(config, control) as read:
        for page in ("/", "/log"):
            await shows(read, page, "no container named ingot-engine", "docker compose up -d engine")
        assert "Start</button>" not in (await read.client.get("/")).text
        docker.refuse.clear()
        await shows(read, "/", "starting")
        assert "no container" not in await read("/")


async def test_the_last_words_are_of_the_last_run(control, docker, config):
    """What a former run had failed of is no cause of how this one ended."""
    docker.wrote(stamp(1), "Error: port 8123 is taken\n")
    docker.wrote(stamp(950_000_000), "the second run begins\n")
    docker.state |= EXITED | {"StartedAt": stamp(900_000_000), "ExitCode": 137}
    async with opened(config, control) as read:
        await shows(read, "/", "failed", "the second run begins")
        assert "port 8123" not in await read("/")


async def test_words_before_the_start_was_noted_count(control, docker, config):
    """Docker notes a start when the process runs already, and one that fails at once has said why by then."""
    docker.wrote(stamp(500_000_000), "Error: port 8123 is taken\n")
    docker.state |= EXITED | {"StartedAt": stamp(600_000_000), "ExitCode": 3}
    async with opened(config, control) as read:
        await shows(read, "/", "failed", "exit status 3", "port 8123 is taken")


async def test_a_daemon_that_is_gone_is_told_while_it_lasts(control, docker, config):
    """Nobody claims to know whether the engine runs."""
    async with opened(config, control) as read:
        await shows(read, "/", "starting")
        await docker.stop()
        await shows(read, "/", "systemctl status docker")
        await docker.start()
        await shows(read, "/", "starting")
        assert "systemctl status docker" not in await read("/")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', "NVIDIA container toolkit"),
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update", "cuda>=13.0"),
    ],
)
async def test_a_machine_that_cannot_give_a_gpu_is_told(control, docker, config, text, told):
    """By the button that was pressed, and on the dashboard, where the container stands in `created`."""
    docker.state = EXITED | {"Status": "created", "StartedAt": "0001-01-01T00:00:00Z"}
    docker.refuse["start"] = (500, text)
    async with opened(config, control) as read:
        await shows(read, "/", "idle")
        pressed = await read.client.post("/engine/start")
        assert pressed.status_code == 503
        assert told.replace(">", "&gt;") in pressed.text
        docker.state |= {"ExitCode": 128, "Error": text}
        await shows(read, "/", "failed", told, "Fix.", f"Docker: {text}")
        await shows(read, "/log", told)


async def test_a_hanging_docker_does_not_freeze_the_pages(control, docker, config, monkeypatch):
    """Many are shown while one answer of Docker's is waited for, and after a while they say so."""
    monkeypatch.setattr("console.engine_control.docker_api.ANSWERS_WITHIN_S", 2.0)
    async with opened(config, control) as read:
        await shows(read, "/", "starting")
        docker.silent = True
        shown, deadline = 0, time.monotonic() + 30
        while "no answer in time" not in await read("/"):
            assert time.monotonic() < deadline
            shown += 1
        assert shown > 2


def test_stamps_are_moments():
    """The one that the tests above rely on."""
    assert datetime(2026, 11, 20, 9, 51, 45, tzinfo=UTC).timestamp() == 1795168305
