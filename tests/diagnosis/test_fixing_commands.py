"""Commands that mend what a launch failed of: the files of its model, and its command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.printed_command import changed_command
from appliance.diagnosis.restoring import restoring_command
from appliance.diagnosis.searchable import Searchable
from appliance.protocol import Diagnosis

ARGUMENTS = (
    "INFO [api_utils.py:1] non-default args: {'model_tag': '/m/odd one', 'port': 8001, 'model': '/m/odd one', "
    "'enforce_eager': True, 'enable_prefix_caching': False, 'middleware': ['acme.Odd', 'acme.Even'], "
    "'hf_overrides': {'odd': 1}}"
)


def _log(*lines: str) -> Searchable:
    return Searchable(number_lines("\n".join(lines)))


def test_the_command_is_made_again_without_an_argument() -> None:
    assert changed_command(_log("x", ARGUMENTS), "middleware", None) == (
        "vllm serve '/m/odd one' --port 8001 --enforce-eager --no-enable-prefix-caching --hf-overrides '{\"odd\": 1}'"
    )


def test_the_command_is_made_again_with_another_value() -> None:
    made = changed_command(_log(ARGUMENTS), "port", "8002")
    assert made is not None
    assert made.startswith("vllm serve '/m/odd one' --port 8002 ")
    assert made.endswith("--middleware acme.Odd acme.Even --hf-overrides '{\"odd\": 1}'")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (ARGUMENTS, "model"),
        (ARGUMENTS, "seed"),
        ("non-default args: {'model': '/m', 'lora_modules': [LoRAModulePath(name='a')], 'port': 1}", "port"),
        ("non-default args: {'model': '/m', 'api_key': ['odd'], 'port': 1}", "port"),
        ("non-default args: {'port': 1}", "port"),
        ("non-default args: {'model': '/m', 'port': 1", "port"),
        ("nothing of it", "port"),
    ],
)
def test_what_cannot_be_made_again_is_no_command(line: str, key: str) -> None:
    assert changed_command(_log(line), key, None) is None


def _of_middleware(profile: dict[str, object] | None) -> Diagnosis:
    log = "\n".join((ARGUMENTS, "ModuleNotFoundError: No module named 'acme'"))
    return diagnose(number_lines(log), failed=True, profile=profile)


def test_a_log_from_elsewhere_is_answered_with_the_command() -> None:
    found = _of_middleware(None)
    assert found.cause == "setting-not-importable"
    assert found.fix is not None
    assert found.fix.command == changed_command(_log(ARGUMENTS), "middleware", None)


def test_what_ingot_started_is_not_started_by_hand() -> None:
    found = _of_middleware({"engine": "vllm", "name": "a", "model": {"path": "/m"}})
    assert found.fix is not None
    assert found.fix.command is None


def test_the_one_setting_of_an_owner_is_left_out() -> None:
    log = "\n".join((ARGUMENTS.replace("8001", "80010"), "Traceback (most recent call last):",
                     '  File "/x/uvicorn/server.py", line 1, in bind', "    sock.bind(a)",
                     "OverflowError: bind(): port must be 0-65535."))  # fmt: skip
    found = diagnose(number_lines(log), failed=True)
    assert found.family == "port"
    assert found.fix is not None
    assert found.fix.command is not None
    assert "80010" not in found.fix.command


def test_a_clone_gives_a_file_back(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert restoring_command(tmp_path, "a b.json") == (
        f"git -C {tmp_path} checkout -- 'a b.json' && git -C {tmp_path} lfs pull --include 'a b.json'"
    )


def test_the_hubs_cache_knows_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models--acme--odd-7b" / "snapshots" / "0a1b"
    folder.mkdir(parents=True)
    assert restoring_command(folder, "config.json") == (
        f"hf download acme/odd-7b config.json --revision 0a1b --cache-dir {tmp_path} --force-download"
    )


def test_of_any_other_folder_it_is_not_known(tmp_path: Path) -> None:
    assert restoring_command(tmp_path, "config.json") is None


def test_a_damaged_file_of_a_clone_is_given_back(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "config.json").write_text('{"cut":')
    log = f"OSError: It looks like the config file at '{tmp_path}/config.json' is not a valid JSON file."
    found = diagnose(number_lines(log), failed=True, model=tmp_path)
    assert found.fix is not None
    assert found.fix.command == restoring_command(tmp_path, "config.json")


def test_a_number_is_raised_to_the_next_that_is_allowed() -> None:
    log = "vllm serve: error: argument --max-lora-rank: invalid choice: 7 (choose from 1, 8, 16, 32, 64, 128, 256)"
    found = diagnose(number_lines(log), failed=True)
    assert found.fix is not None
    assert "--max-lora-rank to 8" in found.fix.text
