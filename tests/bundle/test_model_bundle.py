"""A model comes over whole or not at all, and whatever was done to its bundle on the way is told."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from appliance.bundle.copying import Copier
from appliance.bundle.errors import BundleError, StoppedError, UntrustedError
from appliance.bundle.install import install_models
from appliance.bundle.outline import read_outline
from appliance.bundle.pack import Order, create
from appliance.bundle.signature import Key
from appliance.bundle.verify import verify
from appliance.checkpoint.digest import checkpoint_digest
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.folder import model_names
from tests.bundle.conftest import members_of, refusal, sign_members, write_members
from tests.tiny import write_checkpoint


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_model_comes_out_as_it_went_in(model, packed, key, home):
    """Also the files' modes: an engine that runs as somebody else has to read them."""
    outline = verify(packed, [key.public])
    assert outline.trusted
    assert outline.signed_by == key.public.id
    assert [one.name for one in outline.models] == ["tiny"]
    assert outline.models[0].digest == checkpoint_digest(model)
    assert outline.models[0].bytes == sum(len(raw) for raw in content(model).values())
    assert install_models(packed, home.models, [key.public]) == [home.models / "tiny"]
    assert content(home.models / "tiny") == content(model)
    assert {path.stat().st_mode & 0o777 for path in (home.models / "tiny").iterdir()} == {0o644}
    assert (home.models / "tiny").stat().st_mode & 0o777 == 0o755


def test_one_made_before_there_were_packs_is_read(model, packed, key, home):
    """As Ingot wrote format 2: neither file says anything of packs."""
    members = dict(members_of(packed))
    manifest = json.loads(members["manifest.json"]) | {"format": 2}
    del manifest["packs"]
    members["manifest.json"] = json.dumps(manifest, separators=(",", ":")).encode()
    lines = members["bundle.env"].decode().replace("FORMAT=3\n", "FORMAT=2\n").splitlines(keepends=True)
    members["bundle.env"] = "".join(line for line in lines if not line.startswith("PACKS=")).encode()
    sign_members(members, key, [(file["path"], file["sha256"]) for file in manifest["files"]])
    write_members(packed, list(members.items()))
    install_models(packed, home.models, [key.public])
    assert checkpoint_digest(home.models / model.name) == checkpoint_digest(model)


def test_hidden_files_and_folders_stay_behind(model, key, tmp_path):
    """A download leaves its cache in the folder, and a person's editor a file."""
    (model / ".cache" / "huggingface").mkdir(parents=True)
    (model / ".cache" / "huggingface" / "token").write_text("hf_secret")
    (model / ".config.json.swp").write_text("x")
    create(Order(tmp_path / "m.ingot", key, [model]))
    paths = {file.path for file in verify(tmp_path / "m.ingot", []).manifest.files}
    assert paths == {f"models/tiny/{name}" for name in content(model) if not name.startswith(".")}


def test_equal_content_makes_equal_bytes(model, key, tmp_path, monkeypatch):
    """With SOURCE_DATE_EPOCH, as elsewhere: nothing of the machine or the hour is in it."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for name in ("one", "two"):
        create(Order(tmp_path / name, key, [model]))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_progress_ends_at_the_total(model, packed, key, home, tmp_path):
    seen: list[tuple[int, int]] = []
    create(Order(tmp_path / "again.ingot", key, [model]), lambda what, *at: seen.append(at))
    assert seen[-1][0] == seen[-1][1] > 0
    seen.clear()
    install_models(packed, home.models, [key.public], report=lambda *at: seen.append(at))
    assert seen[-1][0] == seen[-1][1] == verify(packed, []).manifest.total_bytes


@pytest.mark.parametrize(
    ("share", "code"),
    [
        (0.0, "not-a-bundle"), (0.002, "damaged"), (0.1, "damaged"), (0.5, "damaged"), (0.9, "damaged"),
        (0.999, "damaged"), (1.0, "damaged"),
    ],
)  # fmt: skip
def test_a_byte_that_changed_on_the_way_is_found_wherever_it_is(packed, key, home, share, code):
    raw = bytearray(packed.read_bytes())
    raw[int((len(raw) - 1) * share)] ^= 0x40
    packed.write_bytes(raw)
    with refusal(code):
        install_models(packed, home.models, [key.public])
    assert list(home.models.iterdir()) == []


@pytest.mark.parametrize(
    ("kept", "code"),
    [
        (0, "not-a-bundle"), (300, "not-a-bundle"), (512, "incomplete"), (5000, "incomplete"), (0.5, "incomplete"),
        (0.95, "incomplete"), (0.9999, "incomplete"),
    ],
)  # fmt: skip
def test_a_bundle_that_was_cut_off_is_told_at_once_and_leaves_nothing(packed, key, home, kept, code):
    raw = packed.read_bytes()
    packed.write_bytes(raw[: int(kept * len(raw)) if isinstance(kept, float) else kept])
    with refusal(code):
        read_outline(packed, [key.public])
    with refusal(code):
        install_models(packed, home.models, [key.public])
    assert list(home.models.iterdir()) == []


def test_bytes_after_the_end_are_refused(packed, key):
    with packed.open("ab") as file:
        file.write(bytes(512))
    with refusal("too-long"):
        read_outline(packed, [key.public])


def test_only_the_models_that_are_asked_for_are_copied(model, key, home, tmp_path):
    other = write_checkpoint(tmp_path / "source" / "other", seed=2)
    create(Order(tmp_path / "two.ingot", key, [model, other]))
    assert install_models(tmp_path / "two.ingot", home.models, [key.public], ["other"]) == [home.models / "other"]
    assert [path.name for path in home.models.iterdir()] == ["other"]
    assert content(home.models / "other") == content(other)
    with refusal("no-model", names=("third", "tiny, other")):
        install_models(tmp_path / "two.ingot", home.models, [key.public], ["third"])


def test_nothing_is_taken_from_a_stranger_unless_somebody_says_so(model, packed, key, home, tmp_path):
    for trusted in ([], [Key.generate().public]):
        with refusal("untrusted", names=(key.public.id,), kind=UntrustedError):
            install_models(packed, home.models, trusted)
    create(Order(tmp_path / "unsigned.ingot", None, [model]))
    with refusal("unsigned", kind=UntrustedError):
        install_models(tmp_path / "unsigned.ingot", home.models, [key.public])
    assert list(home.models.iterdir()) == []
    assert install_models(tmp_path / "unsigned.ingot", home.models, [], allow_untrusted=True)


def test_a_model_that_is_there_already_is_not_touched(packed, key, home):
    (home.models / "tiny").mkdir()
    with refusal("name-taken"):
        install_models(packed, home.models, [key.public])
    assert list((home.models / "tiny").iterdir()) == []


def test_too_little_disk_is_told_before_anything_is_copied(packed, key, home, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(1, 1, 1))
    with refusal("disk-full"):
        install_models(packed, home.models, [key.public])
    assert list(home.models.iterdir()) == []


def test_who_stops_an_import_gets_a_clean_folder(packed, key, home):
    stop = threading.Event()
    with pytest.raises(StoppedError):
        install_models(packed, home.models, [key.public], report=lambda *at: stop.set(), stop=stop)
    assert list(home.models.iterdir()) == []


def test_an_import_that_was_interrupted_goes_on_where_it_was(packed, key, home, monkeypatch):
    """What is there and right is not copied again; nobody takes it for a model meanwhile."""

    copy, copied = Copier.copy, []

    def counting(self, source, start, size, write):
        if write is not None:
            copied.append(size)
            if len(copied) == 3 and interrupted:  # as when the stick is pulled out
                raise OSError(5, "Input/output error")
        return copy(self, source, start, size, write)

    monkeypatch.setattr(Copier, "copy", counting)
    interrupted = True
    with pytest.raises(OSError, match="Input/output error"):
        install_models(packed, home.models, [key.public])
    assert model_names(home) == []
    (left,) = home.models.iterdir()
    assert left.name.startswith(".incoming-tiny-")
    interrupted = False
    copied.clear()
    install_models(packed, home.models, [key.public])
    assert len(copied) == 2  # of four
    assert [path.name for path in home.models.iterdir()] == ["tiny"]


def _interrupt(*_):
    raise KeyboardInterrupt


def test_what_is_left_of_an_import_is_checked_again(model, packed, key, home, monkeypatch):
    """A file of the right length with another content, as a crash can leave it, is replaced."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            install_models(packed, home.models, [key.public])
    (left,) = home.models.iterdir()
    size = (model / "config.json").stat().st_size
    (left / "config.json").write_bytes(b"{" * size)
    install_models(packed, home.models, [key.public])
    assert content(home.models / "tiny") == content(model)


def test_two_imports_do_not_meet(packed, key, home):
    fd = os.open(home.models, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with refusal("busy"):
            install_models(packed, home.models, [key.public])
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x00" * 40), "model.safetensors"),
        (lambda folder: (folder / "a b.txt").write_text(""), "file-name"),
        (lambda folder: (folder / ("x" * 101)).write_text(""), "file-name"),
        (lambda folder: os.mkfifo(folder / "pipe"), "not-a-file"),
        (lambda folder: (folder / "gone.txt").symlink_to("/nowhere"), "not-readable"),
        (lambda folder: (folder / "Config.json").write_text("{}"), "name-clash"),
    ],
)
def test_what_is_no_model_or_cannot_be_carried_is_refused(model, key, tmp_path, spoil, problem):
    """By the code of the bundle's error, or by the name of the file that makes it no model."""
    spoil(model)
    with pytest.raises((BundleError, CheckpointError)) as caught:
        create(Order(tmp_path / "m.ingot", key, [model]))
    assert problem == getattr(caught.value, "code", "") or problem in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"source", "ingot-home"}
