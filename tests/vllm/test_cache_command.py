"""`ingot cache` at a shell: what it says, and its exit status."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from appliance.bundle.signature import Key
from appliance.bundle.trust import trust
from appliance.caches.cache_command import cache
from appliance.caches.collect import make_pack
from appliance.home import Home
from appliance.vllm.cache_packs.pack import MANIFEST, PackFolder
from tests.vllm.compiled import FACTS


@pytest.fixture
def run(home: Home) -> Any:
    runner = CliRunner(env={"INGOT_HOME": str(home.root), "INGOT_MODELS": str(home.models), "INGOT_CACHE_PACKS": ""})
    before = os.umask(0o022)

    def invoke(*arguments: object) -> Result:
        return runner.invoke(cache, list(map(str, arguments)))

    yield invoke
    os.umask(before)


def test_a_signed_pack_is_added_and_listed(run: Any, home: Home, caches: Path, tmp_path: Path) -> None:
    """And an engine of another user may read it, as the command keeps everything else to its own."""
    key = Key.generate()
    signed = make_pack(caches, tmp_path / "stick" / "one", profile="chat", cold_s=1, facts=FACTS, key=key)
    assert run("add", signed.path).exit_code == 3
    trust(home, key.public)
    assert run("add", signed.path).exit_code == 0
    assert stat.S_IMODE((home.root / "cache-packs").stat().st_mode) == 0o755
    [row] = json.loads(run("list", "--json").stdout)["packs"]
    assert (row["name"], row["bytes"]) == ("one", signed.pack.bytes)
    assert json.loads(run("verify", row["path"], "--json").stdout) == {
        "whole": True, "signed_by": key.public.id, "trusted": True,
    }  # fmt: skip


def test_whoever_asks_is_told_what_is_wrong(run: Any, made: PackFolder, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, status, named in (
        (("pack", "--password-file", tmp_path / "file"), 2, "--sign"),
        (("pack", "--profile", tmp_path / "none.yaml"), 1, "none.yaml"),
        (("verify", tmp_path / "none"), 1, MANIFEST),
        (("verify", made.path), 3, "nobody"),
        (("add", made.path), 3, "--allow-untrusted"),
        (("add", made.path / "objects"), 1, MANIFEST),
    ):
        done = run(*arguments)
        assert (done.exit_code, named in done.output) == (status, True), done.output
        assert done.exception is None or isinstance(done.exception, SystemExit)
