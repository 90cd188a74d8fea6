"""Which profiles have a core started before anything is known about them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.engine_client.core import start_ahead
from appliance.home import Home
from appliance.profile.active import ActiveProfile, write_active


@pytest.mark.parametrize(
    ("profile", "core"),
    [
        (None, True),  # the bundled one
        ("name: a\nengine: vllm\n", False),
        ("engine: 'vllm'\nname: a\n", False),
        ("name: a\nengine: native\n", True),
        ("name: a\n", True),
        ("# engine: vllm\nname: a\n", True),
    ],
)
def test_a_core_is_started_ahead_unless_the_profile_is_vllms(tmp_path: Path, profile: str | None, core: bool) -> None:
    file = tmp_path / "profile.yaml"
    if profile is not None:
        file.write_text(profile)
    started = start_ahead(file)
    assert (started is not None) is core
    if started is not None:
        started.kill()


@pytest.mark.parametrize(("engine", "core"), [("vllm", False), ("native", True)])
def test_so_with_the_active_profile(home: Home, engine: str, core: bool) -> None:
    write_active(home, ActiveProfile(launch=None, revision="1", document={"schema": 1, "engine": engine, "name": "a"}))
    started = start_ahead(home.active_profile)
    assert (started is not None) is core
    if started is not None:
        started.kill()


def test_a_profile_that_can_be_read_only_once_is_left_to_the_launch(tmp_path: Path) -> None:
    """As that of a shell's `<(...)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    started = start_ahead(pipe)
    assert started is not None
    started.kill()


def test_a_file_that_is_no_profile_is_not_read_whole(tmp_path: Path) -> None:
    """As weights, by a slip."""
    file = tmp_path / "model.safetensors"
    file.touch()
    os.truncate(file, 1 << 40)  # of zeros, for which there is no memory
    started = start_ahead(file)
    assert started is not None
    started.kill()
