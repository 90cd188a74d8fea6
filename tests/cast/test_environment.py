"""An incomplete compiler is reported with the command that restores it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance.cast.cast_command import cast
from kernels.cast import check, environment
from kernels.cast.errors import CastError
from tests.cast.test_trust import written


def test_a_triton_that_only_pip_remembers_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where it is cast, and where a cast is verified."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(CastError) as missing:
        environment.ptxas_version(90)
    assert missing.value.command == (
        f"pip install --force-reinstall --no-deps triton=={environment.installed('triton')}"
    )
    made = written(tmp_path)
    assert missing.value.message in [wrong.message for wrong in check.against_this_environment(made, {})]


@pytest.mark.parametrize(("arch", "name"), [("90", "ptxas"), ("120", "ptxas-blackwell")])
def test_a_missing_assembler_is_reported_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str, name: str
):
    monkeypatch.setattr(environment, "triton_folder", lambda: tmp_path)
    done = CliRunner().invoke(cast, ["--arch", arch, "--out", str(tmp_path / "cast"), "--triton-only"])
    assert done.exit_code == 1
    assert f"bin/{name}" in done.output
    assert "No such file or directory" in done.output
    assert "--out" not in done.output


def test_another_file_is_no_matter_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/usr/bin/cc")

    monkeypatch.setattr("appliance.cast.cast_command.build.build", refuse)
    done = CliRunner().invoke(cast, ["--arch", "90", "--out", str(tmp_path / "cast"), "--triton-only"])
    assert done.exit_code == 1
    assert "/usr/bin/cc" in done.output
    assert "Permission denied" in done.output
    assert "--out" not in done.output
