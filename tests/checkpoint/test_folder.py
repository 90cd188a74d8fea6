"""Where a model lies: inside the models folder, through every link, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.checkpoint import CheckpointError, locate
from appliance.checkpoint.folder import BUNDLED_FOLDER, model_names
from appliance.home import Home
from tests.tiny import write_checkpoint


def refused(path: str, home: Home) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        locate(path, home)
    assert caught.value.field == "model.path"
    assert caught.value.fix.text
    return caught.value


def test_a_model_is_found_by_its_path(home: Home) -> None:
    """One level down or two, as hub folders are laid out; `bundled` is Ingot's own."""
    for name in ("tiny", "org/tiny"):
        folder = write_checkpoint(home.models / name)
        assert locate(name, home) == folder.resolve()
    assert model_names(home) == ["org/tiny", "tiny"]
    assert locate("bundled", home) == BUNDLED_FOLDER


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "/etc", "/", "~/x", "a/.."])
def test_a_path_that_leads_out_is_refused(home: Home, path: str) -> None:
    """Whether or not there is something."""
    assert refused(path, home).id == "model-outside"


@pytest.mark.parametrize("path", [".", "./", ""])
def test_the_models_folder_itself_is_no_model(home: Home, path: str) -> None:
    """It would hand out every model's files as one."""
    assert refused(path, home).id == "model-missing"


def test_an_absolute_path_inside_has_a_fix(home: Home) -> None:
    """The fix is the relative path."""
    folder = write_checkpoint(home.models / "tiny")
    assert refused(str(folder), home).fix.patch == {"model.path": "tiny"}


def test_links_that_lead_out_are_refused(home: Home, tmp_path: Path) -> None:
    """The folder itself, a folder above it, or a file in it."""
    outside = write_checkpoint(tmp_path / "outside" / "m")
    (home.models / "link").symlink_to(outside)
    (home.models / "above").symlink_to(outside.parent)
    inside = write_checkpoint(home.models / "inside")
    (inside / "model.safetensors").unlink()
    (inside / "model.safetensors").symlink_to(outside / "model.safetensors")
    for path in ("link", "above/m", "inside"):
        error = refused(path, home)
        assert error.id == "model-outside"
        assert str(outside.parent) in error.message


def test_links_that_stay_inside_are_followed(home: Home, tmp_path: Path) -> None:
    """A hub cache keeps its files in blobs/; the models folder itself may be a link."""
    folder = write_checkpoint(home.models / "cache" / "snapshots" / "1")
    blobs = home.models / "cache" / "blobs"
    blobs.mkdir()
    (folder / "config.json").rename(blobs / "c0ffee")
    (folder / "config.json").symlink_to("../../blobs/c0ffee")
    (home.models / "short").symlink_to(folder)
    assert locate("short", home) == folder.resolve()
    (tmp_path / "elsewhere").symlink_to(home.models)
    assert locate("short", Home.at(home.root, tmp_path / "elsewhere")) == folder.resolve()


def test_a_loop_of_links_is_reported(home: Home) -> None:
    """Not followed for ever."""
    (home.models / "a").symlink_to("b")
    (home.models / "b").symlink_to("a")
    assert refused("a", home).id in ("model-unreadable", "model-missing")


def test_a_missing_model_names_the_nearest(home: Home) -> None:
    """A typo gets a patch; a hub id is recognised; otherwise the models that are there are offered."""
    write_checkpoint(home.models / "Qwen3-8B")
    assert refused("Qwen3-8b", home).fix.patch == {"model.path": "Qwen3-8B"}
    assert refused("Qwen/Qwen3-8B", home).fix.patch == {"model.path": "Qwen3-8B"}
    assert refused("bundle", home).fix.patch == {"model.path": "bundled"}
    hub = refused("meta-llama/Llama-3.1-8B-Instruct", home)
    assert hub.id == "model-is-hub-id"
    assert refused("gemma", home).fix.options == ({"model.path": "Qwen3-8B"},)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"\x00" * 20),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "config.json").write_text("{"),
    ],
)
def test_a_broken_folder_is_not_offered(home: Home, damage) -> None:
    """Neither as the nearest, nor by its last part, nor among the choices."""
    write_checkpoint(home.models / "whole")
    damage(write_checkpoint(home.models / "Qwen3-8B"))
    for path in ("Qwen3-8b", "Qwen/Qwen3-8B", "gemma"):
        fix = refused(path, home).fix
        assert fix.patch is None
        assert "Qwen3-8B." not in fix.text
    assert refused("gemma", home).fix.options == ({"model.path": "whole"},)


def test_a_models_folder_that_is_missing_is_reported(tmp_path: Path) -> None:
    """Rather than every model in it."""
    home = Home.at(tmp_path / "home", tmp_path / "nowhere")
    assert str(home.models) in refused("x", home).message


def test_files_are_not_folders(home: Home) -> None:
    """A GGUF is recognised; a weight file leads to its folder."""
    write_checkpoint(home.models / "tiny")
    (home.models / "x.gguf").write_bytes(b"GGUF")
    (home.models / "x.bin").write_bytes(b"")
    assert refused("x.gguf", home).id == "model-is-gguf"
    assert refused("tiny/model.safetensors", home).fix.patch == {"model.path": "tiny"}
    assert refused("x.bin", home).id == "model-not-a-folder"


@pytest.mark.parametrize("path", ["a\x00b", "x" * 5000, "a/" * 3000 + "b"])
def test_names_that_no_file_system_takes(home: Home, path: str) -> None:
    """Refused in words, whoever let them through."""
    assert refused(path, home).id in ("model-unreadable", "model-missing")
