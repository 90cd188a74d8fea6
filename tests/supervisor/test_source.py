"""The document that a launch begins with, where the file that was named is none."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.home import Home
from appliance.profile.text import MAX_BYTES
from appliance.supervisor.source import read_source


def test_a_profile_is_read(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text("name: a\n")
    source = read_source(home, file)
    assert (source.document, source.problems) == ({"name": "a"}, ())


def test_of_a_file_that_is_no_profile_only_the_beginning_is_read(home: Home, tmp_path: Path) -> None:
    """As weights, by a slip."""
    file = tmp_path / "model.safetensors"
    file.touch()
    os.truncate(file, 1 << 40)  # of zeros, for which there is no memory
    (problem,) = read_source(home, file).problems
    assert (problem.id, f"{MAX_BYTES:,}" in problem.message) == ("profile-invalid", True)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(home: Home, tmp_path: Path) -> None:
    """As a shell's `<(...)` is at a second launch."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (problem,) = read_source(home, pipe).problems
    assert (problem.id, problem.value) == ("profile-invalid", str(pipe))
