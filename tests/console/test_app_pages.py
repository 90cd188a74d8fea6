"""Hardware, benchmarks, and what a start puts right."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sqlalchemy import select

from appliance.profile.active import ActiveProfile, read_active, write_active
from appliance.protocol import ApplianceState, LaunchRecord, Load, State
from console import first_start, new_folder
from console.benchmarks import load
from console.benchmarks.service import Benchmarks
from console.conflicts import Conflict
from console.db.models import ActiveRevision, Benchmark, Revision
from console.live.view import EngineView
from console.settings import SETTINGS, ConsoleConfig, SettingError

# ---- benchmarks -----------------------------------------------------------------------------------------------------


@pytest.fixture
def completions():
    """A front door that streams three tokens for each request, or an error."""
    seen: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        answer = 200

        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(self.answer)
            self.end_headers()
            for text in ("a", "b", "c"):
                self.wfile.write(f'data: {{"choices": [{{"text": "{text}"}}]}}\n\n'.encode())
            self.wfile.write(b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\ndata: [DONE]\n\n')

        def log_message(self, *args) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", seen, Handler
    server.shutdown()
    server.server_close()


def _ready(url: str, **changes) -> EngineView:
    launch = LaunchRecord(id="20261120-100000-aaaa", profile="small", revision="r2", started=1.0, state=State.READY)
    appliance = ApplianceState(state=State.READY, since=1.0, version="0", launch=launch, models=["m"], **changes)
    return EngineView(state=State.READY, reachable=True, appliance=appliance, url=url)


async def test_a_benchmark_is_measured_and_kept(client, console, completions):
    """As many requests as said, each with a prompt of its own; the result stands in the list."""
    url, seen, _ = completions
    console.follower.view = _ready(url)
    benchmarks = Benchmarks(console.home, console.database, console.follower)
    benchmarks.start("admin")
    with pytest.raises(Conflict) as caught:
        benchmarks.start("admin")
    assert caught.value.code == "benchmark-running"
    await asyncio.wait_for(benchmarks._task, 10)
    assert len(seen) == sum(load.STREAMS) * load.REQUESTS_PER_STREAM
    assert len({request["prompt"] for request in seen}) == len(seen)
    async with console.database.session() as session:
        row = (await session.scalars(select(Benchmark))).one()
    assert [result["streams"] for result in row.results] == list(load.STREAMS)
    assert [result["output_tokens"] for result in row.results] == [9, 72]
    text = (await client.get("/benchmarks")).text
    assert "small" in text
    assert "/launches/20261120-100000-aaaa" in text
    await client.post(f"/benchmarks/{row.id}/delete")
    assert 'class="empty"' in (await client.get("/benchmarks")).text


async def test_a_benchmark_that_breaks_says_why(console, completions):
    """No figures are kept that were not measured."""
    url, _, handler = completions
    handler.answer = 500
    console.follower.view = _ready(url)
    benchmarks = Benchmarks(console.home, console.database, console.follower)
    benchmarks.start("admin")
    await asyncio.wait_for(benchmarks._task, 10)
    assert "500" in benchmarks.problem
    assert benchmarks.running is None


async def test_nothing_to_measure(client, console):
    """An engine that is not ready, or at work, is not measured."""
    assert (await client.post("/benchmarks")).status_code == 409
    console.follower.view = _ready("http://127.0.0.1:9", load=Load(running=2))
    answer = await client.post("/benchmarks")
    assert answer.status_code == 409
    assert 'data-conflict="engine-busy"' in answer.text


# ---- starts ---------------------------------------------------------------------------------------------------------


async def test_a_new_folder_is_seeded_once(console):
    """The bundled profile is r1 and active; whoever deletes or changes it is not given it again."""
    console.home.database.rename(console.home.root / "elsewhere")
    new_folder.seed_active(console.home)
    (console.home.root / "elsewhere").rename(console.home.database)
    for _ in range(2):
        await first_start.seed_database(console.home, console.database)
    async with console.database.session() as session:
        active = (await session.scalars(select(ActiveRevision))).one()
        assert len((await session.scalars(select(Revision))).all()) == 1
    assert active.revision.label == "r1"
    assert read_active(console.home).document["name"] == active.revision.profile.name == "ingot-guide"


async def test_a_lost_active_profile_is_written_again(console):
    """The database knows what is active; a file that is there is left alone."""
    await first_start.seed_database(console.home, console.database)
    assert await first_start.restore_active(console.home, console.database) is True
    assert read_active(console.home).revision == "r1"
    mine = ActiveProfile(launch="x", revision="r9", document={"name": "other"})
    write_active(console.home, mine)
    assert await first_start.restore_active(console.home, console.database) is False
    assert read_active(console.home) == mine


def test_settings_are_documented_and_checked(home):
    """Every setting has its help, its default holds, and a value that cannot be is named."""
    assert all(row.help.endswith(".") for row in SETTINGS)
    assert ConsoleConfig.from_environment(home, {}) == ConsoleConfig(home=home)
    config = ConsoleConfig.from_environment(
        home, {"INGOT_CONSOLE_NAMES": "Box, box.lan", "INGOT_CONSOLE_HOST": "0.0.0.0"}
    )
    assert {"box", "box.lan", "localhost"} <= config.allowed_names
    for name, value in {"INGOT_CONSOLE_PORT": "70000", "INGOT_SESSION_HOURS": "0"}.items():
        with pytest.raises(SettingError, match=f"{name} is {value}"):
            ConsoleConfig.from_environment(home, {name: value})
