"""Casting again into a folder adds to what is there; it takes nothing away, and is never in its way."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from click.testing import CliRunner

from appliance.cast import cast_command
from kernels.cast import check, folder, manifest
from kernels.cast.build import Order, Outcome, build, extending
from kernels.cast.errors import CastError
from kernels.context import Context
from tests.cast.casting import order
from tests.cast.conftest import Workshop
from tests.cast.test_build import odd
from tests.cast.test_trust import file, written

WELL, SMALL = odd("well"), odd("well", block=64)


def interrupt_at(name: str) -> Callable[[str], None]:
    def moved(done: str) -> None:
        if done == name:
            raise KeyboardInterrupt

    return moved


def test_what_a_cast_holds_stays_when_a_profile_needs_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A cast of everything stays one, to the byte; one that is limited holds afterwards what both need."""
    monkeypatch.setattr("kernels.cast.plan.triton_variants", lambda _: (WELL, SMALL))
    whole, limited = tmp_path / "whole", tmp_path / "limited"
    build(replace(order(whole, [WELL, SMALL]), models=()), lambda _: None)
    before = (whole / manifest.NAME).read_bytes()
    outcome = build(extending(order(whole, [WELL])), lambda _: None)
    assert outcome.kept == 2
    assert (whole / manifest.NAME).read_bytes() == before

    build(order(limited, [WELL]), lambda _: None)
    both = build(extending(replace(order(limited, [SMALL]), models=("other",))), lambda _: None).manifest
    assert both == check.read(limited)
    assert [variant.name for variant in both.variants] == [WELL.name, SMALL.name]
    assert both.models == ("odd", "other")
    assert not list(check.changed_files(both, limited))


def test_the_command_asks_for_what_the_folder_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = Context("cuda", (9, 0), dtype="bfloat16", hidden_size=1024, intermediate_size=1024, vocab_size=1024)
    ordered: list[Order] = []

    def keep(order: Order, _: Any) -> Outcome:
        ordered.append(order)
        return Outcome(failed={"x": "y"})

    monkeypatch.setattr(cast_command, "profile_and_context", lambda *_: ("small", model))
    monkeypatch.setattr("kernels.cast.build.build", keep)
    arguments = ["--arch", "90", "--out", str(tmp_path / "cast"), "--triton-only"]
    CliRunner().invoke(cast_command.cast, [*arguments, "--profile", "small"])
    CliRunner().invoke(cast_command.cast, arguments)
    written(tmp_path / "cast")
    done = CliRunner().invoke(cast_command.cast, [*arguments, "--profile", "small"])
    assert done.exit_code == 1
    assert (tmp_path / "cast" / manifest.NAME).exists()
    limited, everything, again = ordered
    assert len(limited.variants) < len(everything.variants)
    assert set(again.variants) == set(everything.variants)
    assert (limited.models, again.models) == (("small",), ())


def test_flashinfers_modules_stay_when_none_are_asked_for(tmp_path: Path):
    """With the versions that they were built with; but for one that has been changed."""
    made = build(order(tmp_path, [WELL]), lambda _: None).manifest
    library = file(tmp_path, "flashinfer/norm/norm.so")
    versions = msgspec.structs.replace(made.versions, flashinfer="0.6.13", nvcc="13.0")
    changes: dict[str, Any] = {"versions": versions, "flashinfer": ("norm",), "files": (*made.files, library)}
    manifest.write(msgspec.structs.replace(made, **changes), tmp_path)
    again = build(order(tmp_path, [WELL, SMALL]), lambda _: None).manifest
    assert (again.flashinfer, again.versions) == (("norm",), versions)
    assert not list(check.changed_files(again, tmp_path))
    (tmp_path / library.path).write_bytes(b"y")
    assert build(order(tmp_path, [WELL, SMALL]), lambda _: None).manifest.flashinfer == ()
    assert not (tmp_path / library.path).exists()


def test_a_whole_cast_works_until_the_one_that_extends_it_does(tmp_path: Path):
    """Interrupted, or with a kernel that cannot be compiled; and what was compiled meanwhile is kept."""
    made = build(order(tmp_path, [WELL]), lambda _: None).manifest
    with pytest.raises(KeyboardInterrupt):
        build(order(tmp_path, [WELL, SMALL]), interrupt_at(SMALL.name))
    assert check.read(tmp_path) == made
    assert not list(check.changed_files(made, tmp_path))
    outcome = build(order(tmp_path, [WELL, SMALL, odd("wrong")]), lambda _: None)
    assert (outcome.manifest, outcome.kept) == (None, 2)
    assert check.read(tmp_path) == made
    assert build(order(tmp_path, [WELL, SMALL]), lambda _: None).kept == 2
    assert len(check.read(tmp_path).variants) == 2
    assert not (tmp_path / folder.JOURNAL).exists()


def test_what_a_killed_casts_worker_still_writes_is_not_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It ends by itself, but not at once: until then its folder cannot be removed."""
    build(order(tmp_path, [WELL]), lambda _: None)
    (tmp_path / ".work" / "worker-0").mkdir(parents=True)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    outcome = build(order(tmp_path, [WELL, SMALL]), lambda _: None)
    assert outcome.manifest is not None
    assert outcome.kept == 1


def test_a_journal_that_cannot_be_read_is_reported(tmp_path: Path):
    """One of another user, or what is no file."""
    (tmp_path / folder.JOURNAL).mkdir()
    for attempt in (lambda: check.read(tmp_path), lambda: build(order(tmp_path, [WELL]), lambda _: None)):
        with pytest.raises(CastError, match=r"unfinished\.jsonl.*Is a directory") as refused:
            attempt()
        assert refused.value.id == "cast-unreadable"


def test_a_cast_that_is_ended_leaves_no_process_and_the_command_that_goes_on(workshop: Workshop, tmp_path: Path):
    """SIGTERM, as an init system sends it. What goes on is limited to the same profile."""
    cast = tmp_path / "cast"
    process = workshop.start(*workshop.cast_command("sm_90", cast))
    deadline = time.monotonic() + 60
    while not (cast / folder.JOURNAL).exists() or (cast / folder.JOURNAL).read_bytes().count(b"\n") < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == cast_command.INTERRUPTED
    assert "Traceback" not in errors
    assert not (cast / ".work").exists()
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(cast) in (each.info["cmdline"] or [])]
    with pytest.raises(CastError) as unfinished:
        check.read(cast)
    assert unfinished.value.id == "cast-unfinished"
    words = shlex.split(unfinished.value.command)
    assert words[words.index("--profile") + 1] == str(workshop.profile)
    assert "--triton-only" in words
