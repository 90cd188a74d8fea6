"""Commands that mend what a launch failed of: the files of its model, and its command line."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from appliance.checkpoint.import_record import write_record
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.named_settings import setting_named
from appliance.diagnosis.printed_command import changed_command
from appliance.diagnosis.restoring import changed_since_import, restoring_command
from appliance.diagnosis.searchable import Searchable
from appliance.protocol import Diagnosis
from tests.diagnosis.test_owner_settings import traceback

ARGUMENTS = (
    "INFO [api_utils.py:1] non-default args: {'model_tag': '/m/odd one', 'port': 8001, 'model': '/m/odd one', "
    "'enforce_eager': True, 'enable_prefix_caching': False, 'middleware': ['acme.Odd', 'acme.Even'], "
    "'hf_overrides': {'odd': 1}}"
)


def _log(*lines: str) -> Searchable:
    return Searchable(number_lines("\n".join(lines)))


def test_the_command_is_made_again_without_an_argument() -> None:
    assert changed_command(_log("x", ARGUMENTS), "hf_overrides", None) == (
        "vllm serve '/m/odd one' --port=8001 --enforce-eager --no-enable-prefix-caching --middleware acme.Odd acme.Even"
    )


def test_the_command_is_made_again_with_another_value() -> None:
    made = changed_command(_log(ARGUMENTS), "port", "8002")
    assert made is not None
    assert made.startswith("vllm serve '/m/odd one' --port=8002 ")
    assert made.endswith("--middleware acme.Odd acme.Even '--hf-overrides={\"odd\": 1}'")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (ARGUMENTS, "model"),
        (ARGUMENTS, "middleware"),
        ("non-default args: {'model': '/m', 'uds': '/run/v.sock', 'port': 80}", "uds"),
        ("non-default args: {'model': '/m', 'host': '127.0.0.1', 'port': 80}", "host"),
        (ARGUMENTS, "seed"),
        ("non-default args: {'model': '/m', 'kv_transfer_config': KVTransferConfig(kv_role='a'), 'port': 1}", "port"),
        ("non-default args: {'model': '/m', 'lora_modules': [Odd(name='a')], 'port': 1}", "port"),
        ("non-default args: {'model': '/m', 'api_key': ['odd'], 'port': 1}", "port"),
        ("non-default args: {'port': 1}", "port"),
        ("non-default args: {'model': '/m', 'port': 1", "port"),
        ("nothing of it", "port"),
    ],
)
def test_what_cannot_be_made_again_is_no_command(line: str, key: str) -> None:
    assert changed_command(_log(line), key, None) is None


@pytest.mark.parametrize(
    "given",
    [
        "'kv_transfer_config': {'kv_connector_extra_config': {'api_key': 'odd'}}",
        "'hf_overrides': {'a': [{'b': {'X-Api-Key': 'odd'}}]}",
        "'headers': {'Authorization': 'Bearer odd'}",
        "'additional_config': {'apiKey': 'odd'}",
        "'additional_config': {'accessToken': 'odd'}",
        "'additional_config': '{\"api_key\": \"odd\"}'",
        "'environment': ['HF_TOKEN=odd']",
        "'worker_args': 'run --api-key odd'",
        "'otlp_traces_endpoint': 'http://u:odd@h/'",
        "'kv_events_config': {'endpoint': 'http://odd@h:5557'}",
        "'kv_events_config': {'http://u:odd@h/': 1}",
    ],
)
def test_a_secret_at_any_depth_leaves_no_command(given: str) -> None:
    line = f"non-default args: {{'model': '/m', 'port': 1, {given}}}"
    assert changed_command(_log(line), "port", None) is None
    assert changed_command(_log(line), "port", "2") is None


@pytest.mark.parametrize(
    "given",
    [
        "'eos_token': 'odd'",
        "'max_num_batched_tokens': 8192",
        "'kv_events_config': {'endpoint': 'tcp://h:5557', 'tokens': 1}",
        "'tokenizer': '/m/tokenizer'",
    ],
)
def test_what_only_looks_like_a_secret_is_told(given: str) -> None:
    line = f"non-default args: {{'model': '/m', 'port': 1, {given}}}"
    assert changed_command(_log(line), "port", None) is not None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("'tokenizer': None", []),
        ("'middleware': []", []),
        ("'middleware': ()", []),
        ("'hf_overrides': {}", ["--hf-overrides={}"]),
        ("'revision': ''", ["--revision="]),
        ("'revision': '-odd'", ["--revision=-odd"]),
        ("'seed': -1", ["--seed=-1"]),
        ("'revision': 'a; $(b)'", ["--revision=a; $(b)"]),
        ("'middleware': ['a b', 'c;d']", ["--middleware", "a b", "c;d"]),
        ("'limits': [1, {'a': None}]", ["--limits", "1", '{"a": null}']),
    ],
)
def test_an_argument_is_what_it_was(given: str, words: list[str]) -> None:
    made = changed_command(_log(f"non-default args: {{'model': '/m', 'port': 1, {given}}}"), "port", None)
    assert made is not None
    assert shlex.split(made) == ["vllm", "serve", "/m", *words]


@pytest.mark.parametrize(
    "arguments",
    [
        "'model': '--config=/tmp/odd'",
        "'model_tag': '-odd', 'model': '/m'",
        "'model': ''",
        "'model': '/m', 'middleware': ['--config=/tmp/odd']",
        "'model': '/m', 'middleware': ['a', '']",
        "'model': '/m', 'odd --config': 'a'",
        "'model': '/m', 'revision': 'a\\x1bb'",
        "'model': '/m', 'revision': {1, 2}",
        "'model': '/m', 'hf_overrides': {1: 2}",
        "'model': '/m', 'revision': b'odd'",
    ],
)
def test_what_would_be_taken_for_something_else_leaves_no_command(arguments: str) -> None:
    assert changed_command(_log(f"non-default args: {{'port': 1, {arguments}}}"), "port", None) is None


PROCESSORS = ARGUMENTS.replace("middleware", "logits_processors")


def _of_processors(profile: dict[str, object] | None) -> Diagnosis:
    log = "\n".join((PROCESSORS, "ModuleNotFoundError: No module named 'acme'"))
    return diagnose(number_lines(log), failed=True, profile=profile)


def test_a_log_from_elsewhere_is_answered_with_the_command() -> None:
    found = _of_processors(None)
    assert found.cause == "setting-not-importable"
    assert found.fix is not None
    assert found.fix.command == changed_command(_log(PROCESSORS), "logits_processors", None)
    assert found.fix.command is not None


@pytest.mark.parametrize(
    "lines",
    [("non-default args: {'model': '/m', 'uds': '/run/v.sock', 'port': 80}\n"
      "PermissionError: [Errno 13] Permission denied: '/run/v.sock'"),
     f"{ARGUMENTS}\nModuleNotFoundError: No module named 'acme'"],
)  # fmt: skip
def test_who_may_reach_a_server_is_not_left_out(lines: str) -> None:
    found = diagnose(number_lines(lines), failed=True)
    assert found.fix is not None
    assert not (found.fix.command or "").startswith("vllm serve")


def test_what_ingot_started_is_not_started_by_hand() -> None:
    found = _of_processors({"engine": "vllm", "name": "a", "model": {"path": "/m"}})
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
    assert restoring_command(tmp_path, ["a b.json"]) == (
        f"git -C {tmp_path} checkout -- 'a b.json' && git -C {tmp_path} lfs pull --include 'a b.json'"
    )


def test_the_hubs_cache_knows_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models--acme--odd-7b" / "snapshots" / "0a1b"
    folder.mkdir(parents=True)
    assert restoring_command(folder, ["config.json"]) == (
        f"hf download acme/odd-7b config.json --revision 0a1b --cache-dir {tmp_path} --force-download"
    )


def test_of_any_other_folder_it_is_not_known(tmp_path: Path) -> None:
    assert restoring_command(tmp_path, ["config.json"]) is None


def test_a_damaged_file_of_a_clone_is_given_back(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "config.json").write_text('{"cut":')
    log = f"OSError: It looks like the config file at '{tmp_path}/config.json' is not a valid JSON file."
    found = diagnose(number_lines(log), failed=True, model=tmp_path)
    assert found.fix is not None
    assert found.fix.command == restoring_command(tmp_path, ["config.json"])


def imported(models: Path, media: Path, how: str) -> Path:
    """A model as an import leaves it, from a folder on a drive, a bundle or a bundle in parts."""
    there = media / "ANNA" / "models" / "odd 7b"
    there.mkdir(parents=True)
    (there / "config.json").write_text('{"model_type": "odd"}')
    (there / "model.safetensors").write_bytes(bytes(range(256)) * 8)
    here = models / "renamed"
    shutil.copytree(there, here)
    source = "ANNA/models/odd 7b"
    if how != "folder":
        bundle = media / "ANNA" / "odd one.bundle"
        with tarfile.open(bundle, "w") as tar:
            tar.add(there, "models/odd 7b")
        source = "ANNA/odd one.bundle"
    if how == "parts":
        data = bundle.read_bytes()
        for number, part in enumerate((data[:3000], data[3000:]), 1):
            bundle.with_name(f"{bundle.name}.00{number}").write_bytes(part)
        bundle.unlink()
        source += ".001"
    write_record(
        here, {file.name: "" for file in here.iterdir()}, source=source, name="odd 7b", signed_by="", author=""
    )
    return here


@pytest.mark.parametrize("how", ["folder", "bundle", "parts"])
def test_an_imported_model_comes_back_from_its_drive(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a real shell: a file that was cut, and a folder where one was."""
    monkeypatch.setenv("INGOT_MEDIA", str(tmp_path / "media"))
    here = imported(tmp_path / "models", tmp_path / "media", how)
    whole = {file.name: file.read_bytes() for file in here.iterdir()}
    assert changed_since_import(here) == ()
    (here / "config.json").write_text('{"model_')
    (here / "model.safetensors").unlink()
    (here / "model.safetensors").mkdir()
    assert sorted(changed_since_import(here)) == ["config.json", "model.safetensors"]
    log = "ValueError: Unrecognized model in /m. Should have a `model_type` key in its config.json."
    found = diagnose(number_lines(log), failed=True, model=here, profile={"schema": 1, "name": "m", "engine": "vllm"})
    assert (found.family, found.fix is not None) == ("model-config", True)
    assert found.fix is not None
    assert found.fix.command is not None
    subprocess.run(["sh", "-c", found.fix.command], check=True)
    assert {file.name: file.read_bytes() for file in here.iterdir()} == whole


def test_with_weights_that_came_later_a_copy_is_not_enough(tmp_path: Path) -> None:
    here = imported(tmp_path / "models", tmp_path / "media", "folder")
    (here / "config.json").unlink()
    assert restoring_command(here, ["config.json"]) is not None
    (here / "model.safetensors.index.json").write_text("{}")
    assert restoring_command(here, ["config.json"]) is None


def test_what_did_not_change_is_not_copied_again(tmp_path: Path) -> None:
    here = imported(tmp_path / "models", tmp_path / "media", "folder")
    log = "ValueError: Unrecognized model in /m. Should have a `model_type` key in its config.json."
    found = diagnose(number_lines(log), failed=True, model=here, profile={"schema": 1, "name": "m", "engine": "vllm"})
    assert found.fix is not None
    assert found.fix.command is None


@pytest.mark.parametrize(
    ("source", "name", "file"),
    [("/etc", "m", "passwd"), ("../etc", "m", "passwd"), ("-odd", "m", "a"), ("A", "../..", "a"), ("A", "m", "../a")],
)
def test_a_record_names_nothing_outside_the_drive(source: str, name: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "passwd").touch()
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "passwd").touch()
    (tmp_path / "m" / "a").touch()
    write_record(tmp_path / "m", {file: ""}, source=source, name=name, signed_by="", author="")
    assert restoring_command(tmp_path / "m", [file]) is None


def test_a_number_is_raised_to_the_next_that_is_allowed() -> None:
    log = "vllm serve: error: argument --max-lora-rank: invalid choice: 7 (choose from 1, 8, 16, 32, 64, 128, 256)"
    found = diagnose(number_lines(log), failed=True)
    assert found.fix is not None
    assert "--max-lora-rank to 8" in found.fix.text


@pytest.mark.parametrize("setting", ["ssl_certfile", "ssl_keyfile"])
def test_encryption_is_not_left_out(setting: str) -> None:
    log = f"non-default args: {{'model': '/m', '{setting}': '/odd.pem'}}"
    assert changed_command(_log(log), setting, None) is None
    error = traceback("FileNotFoundError: [Errno 2] No such file or directory", "uvicorn/load_cert_chain.py")
    found = diagnose(number_lines(f"{log}\n{error}"), failed=True)
    assert found.cause == "tls-missing"
    assert found.fix is not None
    assert found.fix.command is None


@pytest.mark.parametrize(
    ("arguments", "patch", "named"),
    [
        ("--max-model-lenght 256", {"max-model-len": 256}, "--max-model-len"),
        ("--gpu-memory-utilisation=0.5", None, "--gpu-memory-utilization"),
        ("--task embed", None, "--runner"),
        ("--frobnicate 3", None, "--frobnicate"),
    ],
)
def test_an_unknown_flag_is_told_by_the_one_that_was_meant(
    arguments: str, patch: dict[str, object] | None, named: str
) -> None:
    found = diagnose(number_lines(f"vllm: error: unrecognized arguments: {arguments}"), failed=True)
    assert found.cause == "unknown-argument"
    assert found.fix is not None
    assert found.fix.patch == patch
    assert named in found.fix.text


def test_an_unknown_flag_of_another_program_is_its_own() -> None:
    found = diagnose(number_lines("sglang: error: unrecognized arguments: --max-model-lenght 256"), failed=True)
    assert found.fix is not None
    assert found.fix.patch is None


def test_what_is_no_json_can_be_left_out() -> None:
    line = (
        "vllm serve: error: argument --limit-mm-per-prompt: Value a=3 cannot be converted to <function loads at 0x1>."
    )
    found = diagnose(number_lines(line), failed=True)
    assert found.cause == "argument-not-json"
    assert found.fix is not None
    assert found.fix.patch == {"vllm.extra-args.limit-mm-per-prompt": None}


def test_an_argument_that_argparse_ignores_is_refused() -> None:
    line = "vllm serve: error: argument --odd/--no-odd: ignored explicit argument 'maybe'"
    assert diagnose(number_lines(line)).cause == "argument-value"


def test_a_flag_of_a_quoted_command_is_no_setting() -> None:
    assert setting_named("Command 'lscpu --seed=1' returned non-zero exit status 1.") is None


def test_what_stands_in_a_log_is_one_word_of_a_command() -> None:
    line = 'zmq.error.ZMQError: No such file or directory for ipc path "/run/a; reboot/3f".'
    found = diagnose(number_lines(line), failed=True)
    assert found.cause == "ipc-folder-missing"
    assert found.fix is not None
    assert found.fix.command == "mkdir -p '/run/a; reboot'"


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ("'speculative_config': {'method': 'warp'}", "method", []),
        ("'kv_transfer_config': KVTransferConfig(kv_connector='Odd', kv_role='a')", "kv_connector", []),
        ("'lora_modules': [LoRAModulePath(name='a', path='/a b', base_model_name=None, is_3d=False)]", "port",
         ["--lora-modules", '{"name": "a", "path": "/a b"}']),
    ],
)  # fmt: skip
def test_an_object_among_the_arguments_goes_as_a_whole_or_stays(given: str, key: str, words: list[str]) -> None:
    line = f"non-default args: {{'model': '/m', {given}{', ' if key == 'port' else '}'}"
    made = changed_command(_log(line + ("'port': 1}" if key == "port" else "")), key, None)
    assert made is not None
    assert shlex.split(made) == ["vllm", "serve", "/m", *words]


GIVEN = "non-default args: {'model': 'acme/odd-7b', 'port': 1, 'tokenizer': '/odd/t'}"
STARTED = "vllm serve acme/odd-7b --port=1 --tokenizer=/odd/t"


@pytest.mark.parametrize(
    ("error", "command"),
    [
        ("ValueError: LoRA rank 64 is greater than max_lora_rank 16.", f"{STARTED} --max-lora-rank=64"),
        ("ValueError: LoRA is not enabled. Use --enable-lora.", f"{STARTED} --enable-lora"),
        ("ValueError: invalid literal for int() with base 10: 'tcp://10.0.0.1:80'", f"env -u VLLM_PORT {STARTED}"),
        ("HFValidationError: Repo id must be in the form 'a/b': '/odd/t'.", "vllm serve acme/odd-7b --port=1"),
        ("LocalEntryNotFoundError: outgoing traffic has been disabled", "HF_HUB_OFFLINE=0 hf download acme/odd-7b"),
        ("ModuleNotFoundError: No module named 'runai_model_streamer'", "python -m pip install runai-model-streamer"),
        ("ModuleNotFoundError: No module named 'odd_package'", "python -m pip check"),
        ("subprocess.CalledProcessError: Command 'lscpu -J' returned non-zero exit status 127.",
         "sudo apt-get install -y util-linux"),
        ("PermissionError: [Errno 13] Permission denied: '/odd/.cache/vllm/x'",
         'sudo mkdir -p /odd/.cache/vllm && sudo chown -R "$(id -u):$(id -g)" /odd/.cache/vllm'),
    ],
)  # fmt: skip
def test_one_command_mends_a_launch_from_elsewhere(error: str, command: str) -> None:
    found = diagnose(number_lines(f"{GIVEN}\n{error}"), failed=True)
    assert found.fix is not None
    assert (found.fix.command or found.fix.look) == command


@pytest.mark.parametrize(
    ("given", "error", "flag", "profile", "patch"),
    [
        ("'max_lora_rank': 32", "LoRA rank 64 is greater than max_lora_rank 32.", "--max-lora-rank=64",
         {}, None),  # no profile may set it
        ("'max_num_seqs': 8", "The pages (3100) is larger than max_num_seqs (8).", "--max-num-seqs=3100",
         {"max-num-seqs": 8}, {"max-num-seqs": 3100}),
    ],
)  # fmt: skip
def test_what_was_given_too_small_becomes_what_is_needed(
    given: str, error: str, flag: str, profile: dict[str, object], patch: dict[str, object] | None
) -> None:
    log = number_lines(f"non-default args: {{'model': '/m', {given}}}\nValueError: {error}")
    found = diagnose(log, failed=True)
    assert found.fix is not None
    assert found.fix.command == f"vllm serve /m {flag}"
    found = diagnose(log, failed=True, profile={"engine": "vllm", "name": "a", "model": {"path": "/m"}, **profile})
    assert found.fix is not None
    assert found.fix.patch == patch


@pytest.mark.parametrize(
    "error",
    ["ImportError: cannot import name 'odd' from 'PIL' (/x/PIL/__init__.py)",
     "ModuleNotFoundError: No module named 'PIL.odd'"],
)  # fmt: skip
def test_a_package_that_is_there_is_not_installed_again(error: str) -> None:
    found = diagnose(number_lines(f"{GIVEN}\n{error}"), failed=True)
    assert found.fix is not None
    assert "install" not in (found.fix.command or "")


@pytest.mark.parametrize(
    "path",
    ["/odd/.cache/x", "/odd/.config/vllm/x", "/root/.cache/vllm/x", "/odd/../.cache/vllm/x", "/odd/.cache/vllm/../x",
     "//root/.cache/vllm/x", "/./root/.triton/x", "/.triton", "/usr/lib/vllm/cache/x", "relative/.triton/x"],
)  # fmt: skip
def test_a_folder_that_is_not_the_engines_alone_is_only_looked_at(path: str) -> None:
    found = diagnose(number_lines(f"{GIVEN}\nPermissionError: [Errno 13] Permission denied: '{path}'"), failed=True)
    assert found.cause == "cache-not-writable"
    assert found.fix is not None
    assert found.fix.look == f"id; ls -ld {path}"


def test_a_cache_of_a_launch_of_ingots_is_only_looked_at() -> None:
    profile = {"engine": "vllm", "name": "a", "model": {"path": "/m"}}
    line = "PermissionError: [Errno 13] Permission denied: '/odd/.cache/vllm/x'"
    found = diagnose(number_lines(line), failed=True, profile=profile)
    assert found.fix is not None
    assert found.fix.look == "id; ls -ld /odd/.cache/vllm/x"


OF_THE_LAUNCH = "HF_HUB_OFFLINE=0 hf download acme/odd-7b"


@pytest.mark.parametrize(
    ("model", "named", "command"),
    [
        ("acme/odd-7b", "https://huggingface.co/acme/odd-7b/resolve/main/config.json", OF_THE_LAUNCH),
        ("acme/odd-7b", "https://huggingface.co; see https://huggingface.co/docs/odd/offline", OF_THE_LAUNCH),
        ("acme/odd-7b", "https://huggingface.co/a/b", None),
        ("acme/odd-7b", "https://huggingface.co/datasets/acme/odd-7b", None),
        ("acme/odd-7b", "'a/b'", None),
        ("acme/odd-7b", "https://huggingface.co/a/b/resolve/main/config.json", "hf download a/b --local-dir a/b"),
        ("models/llama", "https://huggingface.co", None),
        ("./acme/odd-7b", "https://huggingface.co", None),
        ("acme/here", "https://huggingface.co", None),
    ],
)
def test_only_what_is_missing_is_downloaded(
    model: str, named: str, command: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the launch's model where the message names another, and no stranger's in place of a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme" / "here").mkdir(parents=True)
    error = f"LocalEntryNotFoundError: outgoing traffic has been disabled. Cannot reach {named}"
    found = diagnose(number_lines(f"non-default args: {{'model': '{model}'}}\n{error}"), failed=True)
    assert found.fix is not None
    assert found.fix.command == command


@pytest.mark.parametrize("error", ["ValueError: LoRA rank 64 is greater than max_lora_rank 16.",
                                   "ModuleNotFoundError: No module named 'runai_model_streamer'"])  # fmt: skip
def test_a_launch_of_ingots_is_not_mended_by_hand(error: str) -> None:
    profile = {"engine": "vllm", "name": "a", "model": {"path": "/m"}}
    found = diagnose(number_lines(f"{GIVEN}\n{error}"), failed=True, profile=profile)
    assert found.fix is not None
    assert found.fix.command is None


def test_a_variable_is_unset_where_the_command_is_not_known() -> None:
    line = 'Fatal Python error: config_init_hash_seed: PYTHONHASHSEED must be "random" or an integer'
    found = diagnose(number_lines(line), failed=True)
    assert found.fix is not None
    assert found.fix.command == "unset PYTHONHASHSEED"
