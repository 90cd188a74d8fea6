"""The Hardware page and the previews: by the engine's machine where a front door tells of it, by the console's own only
where none answers; and which it is is said."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from msgspec import structs

from appliance.hardware.engine_machine import Machine, this_machine
from appliance.home import Home
from appliance.profile.schema import BUNDLED_MODEL
from console.app import Console
from console.hardware.live import feed
from console.hardware.machines import Machines
from console.pages import environment
from console.profiles.inspection import Inspector
from kernels.context import CastSummary
from tests.console.launch_folders import failed_launch
from tests.hardware.recorded import RECORDINGS, machine_of
from tests.running import wait_for

Client = AsyncTestClient[Litestar]
DOCUMENT = {"schema": 1, "name": "chat", "model": {"path": BUNDLED_MODEL}}


def recorded(name: str, **changes: Any) -> Machine:
    """An engine's machine elsewhere: other files, other libraries."""
    machine = Machine(inventory=machine_of(name), libraries={"triton": "9.9"}, place="elsewhere", version="0.0.9")
    return structs.replace(machine, **changes)


class Engine:
    """A front door that tells of a machine: `answer` is what it says, once `speaks` is set."""

    def __init__(self, answer: bytes, status: int = 200) -> None:
        self.answer, self.status = answer, status
        self.speaks = threading.Event()
        self.speaks.set()
        self.asked = 0
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                engine.asked += 1
                engine.speaks.wait(60)
                self.send_response(engine.status)
                self.send_header("Content-Length", str(len(engine.answer)))
                self.end_headers()
                self.wfile.write(engine.answer)

            def log_message(self, *args: Any) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def tell(self, machine: Machine) -> None:
        self.answer = msgspec.json.encode(machine)

    def stop(self) -> None:
        self.speaks.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(b"")
    yield engine
    engine.stop()


@pytest.fixture
def machines(home: Home, engine: Engine) -> Machines:
    return Machines(home, lambda: engine.url, {})


async def test_without_an_engine_the_page_shows_the_consoles_own_machine(client: Client) -> None:
    text = (await client.get("/hardware")).text
    assert 'data-shown="console"' in text
    assert "/dev/shm" in text


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDINGS.glob("*.json")))
async def test_the_page_shows_the_engines_machine(name: str, client: Client, console: Console, engine: Engine) -> None:
    """Every device by its UUID, grouped under its GPU; every problem with its fix; that it is a recording."""
    machine = recorded(name, cast=CastSummary(arch=90, variants=frozenset({"a", "b"})), environ={"NCCL_DEBUG": "INFO"})
    engine.tell(machine)
    console.follower.client.base_url = engine.url
    answer = await client.get("/hardware")
    assert answer.status_code == 200
    found = machine.inventory
    for gpu in (*found.gpus, *found.divided):
        assert gpu.uuid in answer.text
    for whole in found.divided:
        where = answer.text.index(whole.uuid)
        assert all(answer.text.index(gpu.uuid) > where for gpu in found.gpus if gpu.parent_uuid == whole.uuid)
    for problem in found.problems:
        assert problem.fix.command in answer.text
    assert found.replayed in answer.text
    assert engine.url in answer.text
    assert "data-shown" not in answer.text
    assert "sm_90" in answer.text
    assert "NCCL_DEBUG" in answer.text
    assert "this console is" in answer.text  # of another version than the engine


async def test_who_holds_memory_is_shown(client: Client, console: Console, engine: Engine) -> None:
    """By name where it is known; foreign ones, and memory that nobody who is named holds, are told as such."""
    console.follower.client.base_url = engine.url
    expected = {
        "rtx-pro-6000-x2": ["llama-server", "12847", "72.4 GiB", "412 W", "62 °C"],
        "mig-in-container": ["data-elsewhere", "8.6 GiB", "power (insufficient permissions)"],
        "processes-refused": ["59.8 GiB in use"],
        "dgx-spark": ["unified memory"],
    }
    for name, said in expected.items():
        engine.tell(recorded(name))
        text = (await client.get("/hardware")).text
        assert [words for words in said if words not in text] == []


async def test_an_environment_that_hides_devices_is_explained(client: Client, console: Console, engine: Engine) -> None:
    console.follower.client.base_url = engine.url
    engine.tell(recorded("h200-x8", environ={"CUDA_VISIBLE_DEVICES": "0,9"}))
    text = (await client.get("/hardware")).text
    assert "leaves 1 of 8 devices" in text
    assert "GPU 9" in text


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (b"{}", 401, "status 401"),
        (b'{"error": {}}', 404, "status 404"),
        (b'{"inventory": 7}', 200, "another version"),
        (b"<html>", 200, "another version"),
    ],
)
async def test_a_front_door_that_does_not_tell_is_said(
    answer: bytes, status: int, said: str, client: Client, console: Console, engine: Engine
) -> None:
    """The console's own machine is shown then, with why."""
    console.follower.client.base_url = engine.url
    engine.answer, engine.status = answer, status
    text = (await client.get("/hardware")).text
    assert said in text
    assert 'data-shown="console"' in text


def test_a_look_is_shared_by_those_who_ask_at_once(machines: Machines, engine: Engine) -> None:
    """A form of many fields asks one time; the page asks anew."""
    engine.tell(recorded("h200-x8"))
    engine.speaks.clear()
    threads = [threading.Thread(target=machines.look) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_for("the engine is asked", lambda: engine.asked == 1)
    engine.speaks.set()
    for thread in threads:
        thread.join()
    assert engine.asked == 1
    machines.look(0.0)
    assert engine.asked == 2


def test_a_front_door_that_stands_still_holds_up_one_page(
    machines: Machines, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those after it get what was found then, until twice the time has gone by."""
    monkeypatch.setattr("console.hardware.machines.TIMEOUT_S", 0.1)
    monkeypatch.setattr("console.hardware.machines.SLOW_S", 0.05)
    engine.tell(recorded("none"))
    engine.speaks.clear()
    seen = machines.look(0.0)
    assert "ReadTimeout" in seen.problem
    assert not seen.is_engines
    engine.speaks.set()
    assert machines.look(0.0) is seen
    wait_for("the engine is asked again", lambda: machines.look(0.0).is_engines, 20)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A front door that was stopped: the kernel accepts for it, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        yield listening


async def test_a_front_door_of_another_version_is_told_without_its_fields(machines: Machines, engine: Engine) -> None:
    engine.answer = b"{}"
    seen = machines.look(0.0)
    assert "version" in seen.problem
    assert "inventory" not in seen.problem


def _connections(listening: socket.socket) -> int:
    """How many have come and were never answered."""
    listening.setblocking(False)
    count = 0
    with suppress(BlockingIOError):
        while True:
            listening.accept()[0].close()
            count += 1
    return count


async def test_pages_go_on_while_a_front_door_is_silent(
    client: Client, console: Console, silent: socket.socket, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ask for its machine at once, none waits longer than told, and the others not at all."""
    monkeypatch.setattr("console.hardware.machines.PATIENCE_S", 0.3)
    console.follower.client.base_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
    failed_launch(home, "20261120-110000-bbbb")
    asking = [asyncio.create_task(client.get("/hardware")) for _ in range(40)]
    await asyncio.sleep(0.05)
    assert (await client.get("/launches/20261120-110000-bbbb")).status_code == 200
    pages = await asyncio.gather(*asking)
    assert _connections(silent) < len(asking), "one after the other they would take minutes"
    assert all("0.3 s" in page.text for page in pages)
    assert all('data-shown="console"' in page.text for page in pages)


def test_what_a_front_door_told_before_it_fell_silent_is_kept(
    machines: Machines, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look goes on behind; what was told before is given meanwhile, and said to be that."""
    monkeypatch.setattr("console.hardware.machines.PATIENCE_S", 0.2)
    engine.tell(recorded("h200-x8"))
    before = machines.look()
    engine.speaks.clear()
    for _ in range(5):
        seen = machines.look(0.0)
        assert seen.machine == before.machine
        assert seen.is_engines
        assert "0.2 s" in seen.problem
    assert engine.asked == 2
    engine.speaks.set()
    wait_for("the look that went on has its answer", lambda: machines.look(60).problem == "", 20)


def test_previews_are_judged_by_the_engines_machine(home: Home, machines: Machines, engine: Engine) -> None:
    """Its devices, memory and libraries, though this console has none of them; and that is said."""
    engine.tell(recorded("rtx-pro-6000-x2"))
    inspector = Inspector(home, machines=machines)
    uuids = [gpu.uuid for gpu in machine_of("rtx-pro-6000-x2").gpus]
    assert [value for value, _ in inspector.devices()] == ["cpu", *uuids]
    found = inspector.inspect(DOCUMENT | {"device": uuids[1]})
    assert found.judged_by == machines.look().whose
    assert uuids[1] in found.device
    assert found.effective["device"].value == uuids[1]
    assert found.effective["dtype"].value == "bfloat16"
    assert inspector.selection(DOCUMENT).report.context.libraries == {"triton": "9.9"}


def test_previews_count_what_the_running_launch_will_free(home: Home, machines: Machines, engine: Engine) -> None:
    """A profile that replaces the running one has its memory: not what is free beside it."""
    full = machine_of("rtx-pro-6000")
    (gpu,) = full.gpus
    now = structs.replace(full, gpus=(structs.replace(gpu, memory_free_bytes=1 << 20),))
    engine.tell(recorded("rtx-pro-6000", inventory=now))
    inspector = Inspector(home, machines=machines)
    assert not inspector.inspect(DOCUMENT).memory.fits
    engine.tell(recorded("rtx-pro-6000", inventory=now, free_for_next=full))
    machines.look(0.0)
    assert inspector.inspect(DOCUMENT).memory.fits


def test_previews_without_an_engine_are_judged_by_this_machine(home: Home) -> None:
    """And say so."""
    away = Machines(home, lambda: "http://127.0.0.1:9", {})
    found = Inspector(home, machines=away).inspect(DOCUMENT)
    assert found.judged_by == away.look().whose
    assert not away.look().is_engines
    assert found.device == "the CPU" if not this_machine({}).inventory.gpus else found.device


def test_previews_of_a_stopped_engine_are_judged_by_what_it_told_last(home: Home, engine: Engine) -> None:
    """Where it has a container of its own, also by a console that was started since: this one has none of its GPUs."""
    engine.tell(recorded("rtx-pro-6000"))
    Machines(home, lambda: engine.url, {}, home.engine_machine).look()
    away = Machines(home, lambda: "http://127.0.0.1:9", {}, home.engine_machine)
    seen = away.look()
    assert [gpu.name for gpu in seen.machine.inventory.gpus] == [gpu.name for gpu in machine_of("rtx-pro-6000").gpus]
    assert "http://127.0.0.1:9" in seen.problem
    assert not seen.is_here
    found = Inspector(home, machines=away).inspect(DOCUMENT)
    assert found.judged_by == seen.whose
    assert found.effective["dtype"].value == "bfloat16"


@pytest.mark.parametrize("content", [b"", b"{", b'{"inventory": 7}'])
def test_a_damaged_note_of_the_machine_counts_as_none(home: Home, content: bytes) -> None:
    home.engine_machine.write_bytes(content)
    away = Machines(home, lambda: "http://127.0.0.1:9", {}, home.engine_machine)
    assert not away.look().is_engines


def test_only_an_engine_beside_us_sees_our_files(machines: Machines, engine: Engine) -> None:
    """Checks that look at files, limits and the clock are left to the engine where it is elsewhere."""
    engine.tell(recorded("none"))
    assert not machines.look(0.0).is_here
    engine.tell(this_machine({}))
    assert machines.look(0.0).is_here
    assert Machines(machines._home, None, {}).look().is_here


async def test_the_page_follows_the_machine(machines: Machines, engine: Engine, monkeypatch: Any) -> None:
    """A new picture whenever something has changed, and none when nothing has."""
    monkeypatch.setattr("console.hardware.live.EVERY_S", 0.05)
    engine.tell(recorded("rtx-pro-6000"))
    told = feed(machines, environment())("", "")
    assert "95.6 GiB" in (await anext(told)).data
    asked = engine.asked
    engine.tell(recorded("gpu-lost"))
    assert "GPU is lost" in (await anext(told)).data
    assert engine.asked > asked
    await told.aclose()  # type: ignore[attr-defined]


async def test_the_forms_page_says_whose_machine_judges(
    client: Client, console: Console, engine: Engine, tmp_path: Path
) -> None:
    console.follower.client.base_url = engine.url
    engine.tell(recorded("rtx-pro-6000"))
    form = (await client.get("/profiles/-/new?model=bundled")).text
    assert "the engine&#39;s machine" in form
