"""A cast's folder has one maker at a time, who touches only what a cast has put there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from appliance.cast import cast_command
from kernels.cast import check
from kernels.cast.build import Order, Outcome, build
from kernels.cast.errors import CastError
from kernels.cast.folder import alone_in
from tests.cast.casting import order
from tests.cast.test_build import odd


def test_files_of_others_are_neither_recorded_nor_removed(tmp_path: Path):
    """A desktop's notes, an editor's backup: at every depth, when it is made and when it is made again."""
    cast = tmp_path / "cast"
    variants = [odd("well")]
    made = build(order(cast, variants), lambda _: None).manifest
    key = made.variants[0].keys[0]
    strangers = [cast / name for name in ("README", "triton/.DS_Store", f"triton/{key}/well.json~", "flashinfer/a.txt")]
    for place in strangers:
        place.parent.mkdir(exist_ok=True)
        place.touch()
    (cast / "triton" / key / "notes").mkdir()
    again = build(order(cast, variants), lambda _: None)
    assert again.kept == 1
    assert again.manifest.files == made.files
    assert again.manifest == check.read(cast)
    assert all(place.exists() for place in strangers)


def test_a_second_cast_into_the_same_folder_is_refused(tmp_path: Path):
    with alone_in(tmp_path), pytest.raises(CastError, match=str(tmp_path)) as refused:
        build(order(tmp_path, [odd("well")]), lambda _: None)
    assert refused.value.id == "cast-folder-in-use"
    assert not list(tmp_path.iterdir())
    assert build(order(tmp_path, [odd("well")]), lambda _: None).manifest is not None


@pytest.mark.parametrize("name", ["triton", "flashinfer"])
def test_a_cast_whose_folders_lead_elsewhere_is_left_alone(tmp_path: Path, name: str):
    """Whatever is no kernel of this cast would be removed there."""
    cast = tmp_path / "cast"
    build(order(cast, [odd("well")]), lambda _: None)
    thesis = tmp_path / "papers" / "thesis"
    thesis.mkdir(parents=True)
    if (cast / name).exists():
        (cast / name).rename(tmp_path / "before")
    (cast / name).symlink_to(thesis.parent)
    with pytest.raises(CastError, match=name) as refused:
        build(order(cast, [odd("well")]), lambda _: None)
    assert refused.value.id == "cast-folder-link"
    assert thesis.exists()


def test_two_profiles_of_one_name_are_both_cast_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Their model's shapes differ, and so do their kernels."""
    from kernels.context import Context

    sizes = {"a.yaml": 1024, "b.yaml": 8192}
    shape: dict[str, Any] = {
        "device": "cuda",
        "capability": (9, 0),
        "dtype": "bfloat16",
        "vocab_size": 1024,
        "rotary_dim": 64,
    }
    models = {name: Context(hidden_size=size, intermediate_size=size, **shape) for name, size in sizes.items()}
    monkeypatch.setattr(cast_command, "profile_and_context", lambda source, *_: ("default", models[source]))
    ordered: list[Order] = []

    def keep(order: Order, _: Any) -> Outcome:
        ordered.append(order)
        return Outcome(failed={"x": "y"})

    monkeypatch.setattr("kernels.cast.build.build", keep)
    for profiles in (["a.yaml"], ["b.yaml"], ["a.yaml", "b.yaml"]):
        named = [word for profile in profiles for word in ("--profile", profile)]
        done = CliRunner().invoke(cast_command.cast, ["--arch", "90", "--out", str(tmp_path), "--triton-only", *named])
        assert done.exit_code == 1
    one, two, both = (set(order.variants) for order in ordered)
    assert one != two
    assert both == one | two
    assert ordered[-1].models == ("default", "default")
