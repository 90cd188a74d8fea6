"""The state folder: what is in it is for its owner alone, and files are replaced as a whole."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from appliance.home import Home, write_atomically


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def _umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_what_is_written_after_create_is_for_the_owner_alone(tmp_path):
    """Also in a folder that somebody made beforehand and left open to all."""
    root = tmp_path / "home"
    root.mkdir(mode=0o755)
    home = Home.at(root).create()
    (home.root / "ingot.db").write_bytes(b"")
    assert mode(home.root / "ingot.db") == 0o600
    assert mode(home.active) == 0o700


def test_models_may_lie_elsewhere_and_are_then_not_made(tmp_path):
    environ = {"INGOT_HOME": str(tmp_path / "home"), "INGOT_MODELS": str(tmp_path / "models")}
    home = Home.from_environment(environ).create()
    assert home.models == tmp_path / "models"
    assert not home.models.exists()


def test_a_reader_never_sees_a_part_of_a_file_that_is_being_replaced(tmp_path):
    path = tmp_path / "file"
    whole = [letter * 200_000 for letter in "ab"]
    write_atomically(path, whole[0])
    seen = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(100):
        write_atomically(path, whole[n % 2])
    done.set()
    reader.join()
    assert seen <= set(whole)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_launch_ids_sort_by_time(tmp_path):
    home = Home.at(tmp_path)
    assert home.new_launch_id(0) < home.new_launch_id(1) < home.new_launch_id(4_000_000_000)


def test_launch_ids_sort_in_the_order_of_the_launches_though_the_clock_is_set_back(tmp_path):
    home = Home.at(tmp_path).create()
    now = 1_795_168_305.25
    ids = []
    for second in (now, now, now - 3600, now - 3600.5, now + 1):
        ids.append(home.new_launch_id(second))
        home.launch(ids[-1]).mkdir()
    for other in ("20269999-000000-0000", "notes", "20991231-235959-zzzz"):
        home.launch(other).mkdir()
    assert ids == sorted(set(ids))
    assert home.new_launch_id(now + 2) == home.new_launch_id(now + 2) > ids[-1]
