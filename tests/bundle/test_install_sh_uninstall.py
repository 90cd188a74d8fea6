"""install.sh takes away what it put there, and nothing of anybody else's: not in the folder, and not in Docker."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.bundle.install_site import MACHINE, USAGE, Site

PURGE = ("--uninstall", "--purge", "--yes")


def purge(site: Site, bundle: Path, into: Path) -> tuple[int, str]:
    return site.run(bundle.with_name("install.sh"), "--into", into, *PURGE)


def test_uninstall_keeps_the_data(installed, first):
    """And a later install takes it up, after a copy of it was made."""
    status, told = installed.again("--uninstall", "--yes")
    assert status == 0, told
    assert (installed.told / "images").read_text() == ""
    assert (installed.told / "volume").exists()
    assert (installed.into / "models" / "tiny" / "config.json").is_file()
    assert not list(installed.into.glob("compose*.yaml"))
    status, told = installed.install(first)
    assert status == 0, told
    assert list((installed.into / "backups").glob("ingot-found-*.volume.tar"))
    assert installed.again(*PURGE)[0] == 0
    assert not (installed.told / "volume").exists()


def test_purge(installed):
    """Everything; only after a yes."""
    status, told = installed.again("--uninstall", "--purge")
    assert status == USAGE
    assert "--yes" in told
    status, told = installed.again(*PURGE)
    assert status == 0, told
    assert not installed.into.exists()
    assert not (installed.told / "volume").exists()


@pytest.mark.parametrize("options", [PURGE, ("--uninstall", "--yes"), ("--rollback", "--yes")])
def test_a_folder_without_an_installation_is_left_alone(site, first, options):
    """Whatever lies in it, under whatever name; and so is the volume, which is of another installation."""
    letters = site.folder / "home" / "models" / "letter"
    letters.parent.mkdir(parents=True)
    letters.write_text("mine")
    site.say("volume", "another")
    status, told = site.run(first.with_name("install.sh"), "--into", site.folder / "home", *options)
    assert status == USAGE
    assert str(site.folder / "home") in told
    assert letters.read_text() == "mine"
    assert [path.name for path in (site.folder / "home").iterdir()] == ["models"]
    assert (site.told / "volume").exists()


def test_what_others_put_beside_it_stays_and_is_named(installed):
    """Files of the site, and what is in its media; the rest is gone."""
    (installed.into / "secrets").mkdir()
    (installed.into / "secrets" / "tls.key").write_text("mine")
    (installed.into / "media").mkdir()
    (installed.into / "media" / "photograph").write_text("mine")
    status, told = installed.again(*PURGE)
    assert status == 0, told
    assert sorted(path.name for path in installed.into.iterdir()) == ["media", "secrets"]
    assert (installed.into / "media" / "photograph").exists()
    assert "secrets" in told


def test_what_was_there_before_stays(site, first):
    """A folder that had models and a note of its own before Ingot came."""
    (site.into / "models" / "old").mkdir(parents=True)
    (site.into / "note").write_text("mine")
    assert site.install(first)[0] == 0
    status, told = site.again(*PURGE)
    assert status == 0, told
    assert sorted(path.name for path in site.into.iterdir()) == ["models", "note"]
    assert (site.into / "models" / "old").is_dir()


def test_what_is_mounted_below_is_not_emptied(installed, tmp_path):
    """A stick or a share below DIR: told, and nothing is deleted."""
    stick = tmp_path / "stick"
    stick.mkdir()
    (stick / "precious").write_text("mine")
    below = installed.into / "models" / "STICK"
    below.mkdir()
    if subprocess.run(["mount", "--bind", stick, below], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        status, told = installed.again(*PURGE)
    finally:
        subprocess.run(["umount", below], check=True)
    assert status == 1
    assert str(below) in told
    assert (stick / "precious").exists()
    assert (installed.into / "trusted.pub").exists()
    assert (installed.told / "volume").exists()


def test_a_volume_that_is_in_use_stops_it(installed):
    """Nothing is told as gone that is still there, and nothing else is deleted."""
    installed.say("volume-in-use", "")
    status, told = installed.again(*PURGE)
    assert status == 1
    assert "ingot_state" in told
    assert (installed.into / "models" / "tiny").is_dir()
    (installed.told / "volume-in-use").unlink()
    status, told = installed.again(*PURGE)
    assert status == 0, told


def test_a_volume_that_was_there_before_stays(site, first):
    """It is used, and it is not ours to delete."""
    site.say("volume", "")
    assert site.install(first)[0] == 0
    status, told = site.again(*PURGE)
    assert status == 0, told
    assert "docker volume rm ingot_state" in told
    assert (site.told / "volume").exists()
    assert not site.into.exists()


def test_containers_go_without_their_compose_file(installed):
    """Where somebody deleted it, Docker's labels say which they are."""
    (installed.into / "compose.yaml").unlink()
    status, told = installed.again(*PURGE)
    assert status == 0, told
    assert installed.calls("rm --force ingot-engine")


def test_containers_of_another_installation_stay(installed):
    """Also where they have the same names."""
    installed.say("running", "/srv/another")
    status, told = installed.again("--uninstall", "--yes")
    assert status == 0, told
    assert not installed.calls("rm --force")
    assert (installed.told / "running").exists()


def test_models_elsewhere_stay(site, first):
    """INGOT_MODELS may name a folder that others use, too; what is relative is so to DIR, as for Compose."""
    models = site.folder / "weights"
    assert site.install(first, INGOT_MODELS=str(models))[0] == 0
    status, told = site.again(*PURGE)
    assert status == 0, told
    assert str(models) in told
    assert (models / "tiny").is_dir()


def test_an_interrupted_first_install_can_be_purged(site, first):
    """It has a mark and little else."""
    site.say("power-cut", "engine.tar.zst")
    assert site.install(first)[0] != 0
    status, told = purge(site, first, site.into)
    assert status == 0, told
    assert not site.into.exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--purge",), {"--purge", "--uninstall"}),
        (("--rollback", "--uninstall"), {"--rollback", "--uninstall"}),
        (("--rollback", "--purge"), {"--purge", "--uninstall"}),
        (("--rollback", "x.bundle"), {"--rollback"}),
        (("--uninstall", "x.bundle"), {"--uninstall"}),
        (("--uninstall", "--public-key", "x.pub"), {"--uninstall"}),
    ],
)
def test_options_that_do_not_go_together(installed, options, named):
    """Nothing is done of either, and the refusal names those that clash and no others."""
    before = sorted(installed.into.rglob("*"))
    status, told = installed.again(*options, "--yes")
    assert status == USAGE
    assert set(re.findall(r"--[a-z-]+", told)) == named
    assert not installed.calls("")
    assert sorted(installed.into.rglob("*")) == before


def test_an_install_beside_another_is_refused(site, first):
    """Its containers have the same names and the same data: they are named, with where they were started."""
    site.say("others", "ingot-engine|/srv/checkout")
    status, told = site.install(first)
    assert status == MACHINE
    assert "ingot-engine|/srv/checkout" in told
    assert not site.calls("load")
    assert not site.calls("volume")
    assert os.listdir(site.into / "models") == []
