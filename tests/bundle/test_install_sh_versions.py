"""install.sh from one version to the next and back, with the data of each."""

from __future__ import annotations

import time

from tests.bundle.install_site import BUNDLE, ENGINE, MACHINE, USAGE, make
from tests.running import free_port

# ------------------------------------------------------------------------------------------------ upgrade and roll back


def test_an_upgrade(installed, second):
    """The state is saved before anything new runs; the former version stays; the site's settings stay."""
    port = str(free_port())
    env = installed.into / ".env"
    env.write_text(
        env.read_text().replace("compose.yaml", "compose.yaml:compose.tls.yaml") + f"INGOT_CONSOLE_PORT={port}\n"
    )
    status, told = installed.again(second)
    assert status == 0, told
    assert "install.sh of 2.0" in told
    assert (installed.release(), installed.release("previous")) == ("2.0", "1.0")
    order = [call for call in installed.calls("compose --project-name") if " up " in call or "backup" in call]
    assert [("backup" in call) for call in order] == [True, False]
    saved = (installed.into / "releases" / "1.0" / "state").read_text().strip()
    assert (installed.into / "backups" / saved).read_text() == "a backup of 1.0\n"
    assert (installed.into / "backups" / saved).stat().st_mode & 0o077 == 0
    assert installed.setting("COMPOSE_FILE") == "compose.yaml:compose.tls.yaml"
    assert (installed.setting("INGOT_TAG"), installed.setting("INGOT_CONSOLE_PORT")) == ("2.0", port)
    assert "setup?code" not in told


def test_only_two_versions_are_kept(installed, second, tmp_path):
    """The one that runs and the one before; the images of older ones are removed, and no backup is."""
    assert installed.again(second)[0] == 0
    assert installed.again(make(tmp_path / "third", "3.0", installed.key))[0] == 0
    assert sorted(path.name for path in (installed.into / "releases").iterdir()) == ["2.0", "3.0"]
    assert not [tag for tag in (installed.told / "images").read_text().split() if tag.endswith(":1.0")]
    assert len(list((installed.into / "backups").iterdir())) == 2


def test_a_failed_upgrade_says_how_to_go_back(installed, second):
    """The cause, where the data is, and the command; which then brings the former version with its data."""
    installed.say("engine", "10")
    status, told = installed.again(second)
    assert status == ENGINE
    assert "the engine's last words" in told
    assert f"sh {installed.into}/install.sh --rollback" in told
    assert "setup?code" not in told
    installed.say("engine", "0")
    status, told = installed.again("--rollback", "--yes")
    assert status == 0, told
    assert installed.release() == "1.0"
    assert installed.setting("INGOT_TAG") == "1.0"
    assert (installed.told / "restored").read_text() == "a backup of 1.0\n"
    assert len(list((installed.into / "backups").iterdir())) == 2


def test_a_version_that_never_came_up_is_not_one_to_go_back_to(installed, second, tmp_path):
    """After a failed upgrade, a third version that works has the first as the one before."""
    installed.say("engine", "10")
    assert installed.again(second)[0] == ENGINE
    installed.say("engine", "0")
    assert installed.again(make(tmp_path / "third", "3.0", installed.key))[0] == 0
    assert (installed.release(), installed.release("previous")) == ("3.0", "1.0")


def test_back_and_forth(installed, second):
    """What the newer version had is saved before the way back, and --rollback again brings it."""
    assert installed.again(second)[0] == 0
    assert installed.again("--rollback", "--yes")[0] == 0
    status, told = installed.again("--rollback", "--yes")
    assert status == 0, told
    assert (installed.release(), installed.release("previous")) == ("2.0", "1.0")
    assert (installed.told / "restored").read_text() == "a backup of 2.0\n"


def test_an_interrupted_roll_back_goes_on(installed, second, first):
    """It is finished, not begun again; until then nothing else is installed."""
    assert installed.again(second)[0] == 0
    installed.say("no-restore", "")
    status, told = installed.again("--rollback", "--yes")
    assert status == 1
    status, told = installed.again(first)
    assert status == 1
    assert "--rollback" in told
    (installed.told / "no-restore").unlink()
    (installed.told / "calls").unlink()
    status, told = installed.again("--rollback")
    assert status == 0, told
    assert installed.release() == "1.0"
    assert not installed.calls("backup create")


def test_a_console_that_cannot_make_a_backup(installed, second):
    """Then the volume is copied as it is, with nothing running, and put back the same way."""
    installed.say("no-backup", "")
    status, told = installed.again(second)
    assert status == 0, told
    (saved,) = (installed.into / "backups").glob("*.volume.tar")
    assert saved.read_text() == "the volume\n"
    assert installed.again("--rollback", "--yes")[0] == 0
    assert (installed.told / "restored").read_text() == "the volume\n"


def test_nothing_to_go_back_to(installed):
    status, told = installed.again("--rollback", "--yes")
    assert status == USAGE
    assert "1.0" in told


def test_another_bundle_of_the_same_release(installed, tmp_path):
    """Under one name there would be no way back."""
    status, told = installed.again(make(tmp_path / "twin", "1.0", installed.key, temperature="1"))
    assert status == BUNDLE
    assert "--release" in told
    assert installed.release() == "1.0"


def test_a_stop_between_the_switch_and_the_start(installed, second):
    """After a roll-back, the newer version is installed again and stopped half-way: the same command starts it."""
    assert installed.again(second)[0] == 0
    assert installed.again("--rollback", "--yes")[0] == 0
    installed.say("power-cut-at-up", "")
    assert installed.again(second)[0] != 0
    status, told = installed.again(second)
    assert status == 0, told
    assert (installed.told / "image").read_text() == "ingot-engine:2.0\n"


def test_roll_back_brings_the_model_of_the_version_before(installed, tmp_path):
    """Under its name, while that of the newer version is kept; and --rollback again brings that one."""
    config = installed.into / "models" / "tiny" / "generation_config.json"
    before = config.read_text()
    bundle = make(tmp_path / "other", "2.0", installed.key, temperature="1")
    assert installed.again(bundle)[0] == 0
    after = config.read_text()
    assert after != before
    assert installed.again("--rollback", "--yes")[0] == 0
    assert config.read_text() == before
    assert installed.again("--rollback", "--yes")[0] == 0
    assert config.read_text() == after
    assert installed.again("--rollback", "--yes")[0] == 0
    assert config.read_text() == before


def test_a_failed_version_between_does_not_lose_the_model(installed, tmp_path):
    """1.0 works, 2.0 fails, 3.0 works, each with a model of its own under one name: back is to that of 1.0."""
    config = installed.into / "models" / "tiny" / "generation_config.json"
    before = config.read_text()
    installed.say("engine", "10")
    assert installed.again(make(tmp_path / "two", "2.0", installed.key, temperature="1"))[0] == ENGINE
    installed.say("engine", "0")
    status, told = installed.again(make(tmp_path / "three", "3.0", installed.key, temperature="2"))
    assert status == 0, told
    assert installed.again("--rollback", "--yes")[0] == 0
    assert config.read_text() == before


def test_an_older_database_is_refused(installed, tmp_path):
    """Its console cannot read what is there. The way back is named."""
    status, told = installed.again(make(tmp_path / "old", "0.9", installed.key, schema="0001"), "--yes")
    assert status == MACHINE
    assert f"sh {installed.into}/install.sh --rollback" in told
    assert not installed.calls("load")
    assert not installed.calls("backup")


def test_a_bundle_that_was_made_earlier_is_asked_about(installed, tmp_path, monkeypatch):
    """Signed as it is, it may lack what was mended since."""
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() - 86400)
        bundle = make(tmp_path / "old", "0.9", installed.key)
    status, told = installed.again(bundle)
    assert status == USAGE
    assert "1.0" in told
    status, told = installed.again(bundle, "--yes")
    assert status == 0, told


def test_a_state_that_cannot_be_saved_stops_nothing(installed, second):
    """Neither by the console nor as it is: engine and console run again, and are of the version before."""
    installed.say("no-backup", "")
    installed.say("no-copy", "")
    status, _ = installed.again(second)
    assert status == 1
    assert installed.release() == "1.0"
    assert installed.calls("start engine console")


def test_no_model_changes_before_the_state_is_saved(installed, tmp_path):
    """Where it cannot be saved, the version before goes on with the model that it had."""
    config = installed.into / "models" / "tiny" / "generation_config.json"
    before = config.read_text()
    installed.say("no-backup", "")
    installed.say("no-copy", "")
    assert installed.again(make(tmp_path / "other", "2.0", installed.key, temperature="1"))[0] == 1
    assert config.read_text() == before


def test_the_version_before_a_failed_one_comes_back_by_roll_back(installed, second, tmp_path):
    """Installed again, it would be its own version before, and the one before it would go."""
    assert installed.again(second)[0] == 0
    installed.say("engine", "10")
    assert installed.again(make(tmp_path / "third", "3.0", installed.key))[0] == ENGINE
    installed.say("engine", "0")
    status, told = installed.again(second)
    assert status == MACHINE
    assert f"sh {installed.into}/install.sh --rollback" in told
    status, told = installed.again("--rollback", "--yes")
    assert status == 0, told
    assert installed.release() == "2.0"
    assert (installed.into / "releases" / "1.0").is_dir()


def test_an_image_that_is_gone_is_asked_for_by_its_file(installed, second):
    """Another install of the version before would be refused, and is not needed."""
    assert installed.again(second)[0] == 0
    tags = (installed.told / "images").read_text().replace("ingot-console:1.0\n", "")
    (installed.told / "images").write_text(tags)
    status, told = installed.again("--rollback", "--yes")
    assert status == MACHINE
    assert "tar -xOf BUNDLE images/console.tar.zst | docker load" in told
