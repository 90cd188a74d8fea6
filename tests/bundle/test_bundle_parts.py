"""A bundle that was cut for small media is read from its parts, and whatever happened to one of them is told by its
name."""

from __future__ import annotations

import os
import shutil
import threading

import pytest

from appliance.bundle.errors import StoppedError
from appliance.bundle.install import install_models
from appliance.bundle.outline import read_outline
from appliance.bundle.pack import Order, create
from appliance.bundle.verify import verify
from tests.bundle.conftest import refusal


def told(cut, key, home, *codes, names):
    """By verify and by the import; the latter leaves nothing."""
    whole = cut[0].with_name("cut.ingot")
    with refusal(*codes, names=names):
        verify(whole, [key.public])
    with refusal(*codes, names=names):
        install_models(whole, home.models, [key.public])
    assert list(home.models.iterdir()) == []


def test_the_parts_hold_what_one_file_would(model, cut, key, home):
    assert [path.name for path in cut] == [f"cut.ingot.{number:03d}" for number in range(1, 7)]
    assert {path.stat().st_size for path in cut[:-1]} == {100_000}
    assert 0 < cut[-1].stat().st_size <= 100_000
    for name in ("cut.ingot", "cut.ingot.001"):
        assert verify(cut[0].with_name(name), [key.public]).trusted
    install_models(cut[0].with_name("cut.ingot"), home.models, [key.public])
    assert (home.models / "tiny" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_parts_that_were_put_together_again_are_a_bundle(cut, key, tmp_path):
    (tmp_path / "joined.ingot").write_bytes(b"".join(path.read_bytes() for path in cut))
    assert verify(tmp_path / "joined.ingot", [key.public]).trusted
    with (tmp_path / "joined.ingot").open("ab") as file:
        file.truncate(250_000)
    with refusal("incomplete", names=("joined.ingot", "250,000")):
        read_outline(tmp_path / "joined.ingot", [])


@pytest.mark.parametrize("number", [1, 2, 5, 6])
def test_a_part_that_is_missing_is_named(cut, key, home, number):
    cut[number - 1].unlink()
    told(cut, key, home, "part-missing", names=(f"cut.ingot.00{number}",))


@pytest.mark.parametrize("number", [1, 2, 5, 6])
def test_a_part_that_was_cut_off_is_named(cut, key, home, number):
    with cut[number - 1].open("r+b") as file:
        file.truncate(cut[number - 1].stat().st_size - 1000)
    told(cut, key, home, "incomplete", "too-long", names=(f"cut.ingot.00{number}",))


@pytest.mark.parametrize("number", [2, 3, 6])
def test_a_part_that_is_damaged_is_named(cut, key, home, number):
    """Also where one file spans several parts, so that its own hash does not tell which."""
    raw = bytearray(cut[number - 1].read_bytes())
    raw[1000] ^= 1
    cut[number - 1].write_bytes(raw)
    told(cut, key, home, "damaged", names=(f"cut.ingot.00{number}",))


def test_the_search_for_a_damaged_part_is_shown_and_can_be_stopped(cut, key):
    """It reads the whole once more, which takes an hour of a large medium."""
    cut[3].write_bytes(cut[3].read_bytes()[:-1] + b"?")
    seen: list[int] = []
    stop = threading.Event()

    def report(done: int, total: int) -> None:
        again = bool(seen) and done < seen[-1]
        seen.append(done)
        if again:
            stop.set()

    with pytest.raises(StoppedError):
        verify(cut[0].with_name("cut.ingot"), [key.public], report, stop)


def test_parts_that_changed_places_are_named(cut, key, home):
    cut[1].rename(cut[1].with_suffix(".x"))
    cut[2].rename(cut[1])
    cut[1].with_suffix(".x").rename(cut[2])
    told(cut, key, home, "damaged", names=("cut.ingot.002", "cut.ingot.003"))


def test_a_part_that_is_there_twice_is_named(cut, key, home):
    shutil.copy(cut[1], cut[3])
    told(cut, key, home, "damaged", names=("cut.ingot.004", "cut.ingot.002"))


def test_a_first_part_in_the_place_of_another_is_named(cut, key, home):
    shutil.copy(cut[0], cut[2])
    told(cut, key, home, "damaged", names=("cut.ingot.003", "cut.ingot.001"))


def test_a_part_in_the_place_of_the_first_is_named(cut, key, home):
    shutil.copy(cut[1], cut[0])
    told(cut, key, home, "not-a-bundle", names=("cut.ingot.001",))


def test_a_part_of_another_bundle_does_not_belong(cut, key, home):
    shutil.copy(cut[1], cut[0].with_name("cut.ingot.007"))
    told(cut, key, home, "not-a-part", names=("cut.ingot.007", "6"))


def test_who_names_a_later_part_is_told_which_to_name(cut):
    with refusal("not-first", names=("cut.ingot.001",)):
        read_outline(cut[2], [])


def test_a_part_that_cannot_be_read_is_named(cut, key, home):
    cut[3].unlink()
    cut[3].mkdir()
    told(cut, key, home, "not-readable", names=("cut.ingot.004",))


@pytest.mark.parametrize("size", [12_288, 20_000, 573_440, 578_560, 600_000, 10**9])
def test_any_size_of_part_that_can_hold_the_head_gives_a_bundle(model, key, tmp_path, size):
    """Also where one hash more in the head makes it one part more."""
    create(Order(tmp_path / "any.ingot", key, [model], part_size=size))
    assert verify(tmp_path / "any.ingot", [key.public]).trusted
    assert all(path.stat().st_size <= size for path in tmp_path.glob("any.ingot.*"))


@pytest.mark.parametrize("size", [1, 512, 5120])
def test_parts_too_small_for_the_head_are_refused(model, key, tmp_path, size):
    with refusal("part-size", names=("--split",)):
        create(Order(tmp_path / "any.ingot", key, [model], part_size=size))
    assert not list(tmp_path.glob("*any*"))


def test_a_move_that_is_broken_off_leaves_no_part(model, key, tmp_path, monkeypatch):
    """The last step is a rename for each part."""
    rename, renamed = os.rename, []

    def interrupted(source, target):
        renamed.append(target)
        if len(renamed) == 3:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        create(Order(tmp_path / "any.ingot", key, [model], part_size=100_000))
    assert not list(tmp_path.glob("*any*"))
