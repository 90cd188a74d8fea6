"""Preflight of vLLM: is it there, can it be used here, and does it fit device and hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.hardware.machine import Inventory
from appliance.home import Home
from appliance.profile.document import check
from appliance.profile.schema import Problem
from appliance.profile.vllm_json import OBJECTS
from appliance.profile.vllm_options import FLAGS
from appliance.vllm.installation import read_installation
from appliance.vllm_program import find_program
from tests.vllm.stand_in import install
from tests.vllm.test_vllm_command import CPU, gpus, planned


def ours(home: Home, program: Path, changes: dict[str, Any], inventory: Inventory) -> list[str]:
    """The errors of the checks that are tested here."""
    _, errors = planned(home, program, changes, inventory, local=True)
    return [error for error in errors if error.startswith(("vllm", "ray", "engine"))]


def test_an_installation_is_read_from_its_files(tmp_path: Path) -> None:
    """Nothing of it is started: also where its command does nothing."""
    program = install(tmp_path / "a", "0.33.0rc1+cpu", ray="2.50.0")
    found = find_program({"INGOT_VLLM": str(program)})
    installation = read_installation(found)
    assert (installation.version, installation.built_for, installation.ray) == ("0.33.0rc1+cpu", "cpu", "2.50.0")
    assert (installation.release, installation.too_old, installation.reads_uuids) == ((0, 33, 0), False, True)


@pytest.mark.parametrize(("version", "built_for", "too_old"), [
    ("0.11.0", "cuda", False), ("0.10.2", "cuda", True), ("0.32.0+rocm700", "rocm", False), ("1.0", "cuda", False),
])  # fmt: skip
def test_versions(tmp_path: Path, version: str, built_for: str, too_old: bool) -> None:
    installation = read_installation(find_program({"INGOT_VLLM": str(install(tmp_path, version))}))
    assert (installation.built_for, installation.too_old) == (built_for, too_old)


@pytest.mark.parametrize(
    ("version", "uuids", "changes", "with_gpu", "expected"),
    [
        ("0.32.0+cpu", True, {}, False, []),
        ("0.32.0", True, {}, True, []),
        ("0.32.0+cpu", True, {}, True, ["vllm-built-for-cpu"]),
        ("0.32.0", True, {"device": "cpu"}, True, ["vllm-built-for-gpus"]),
        ("0.32.0", True, {}, False, ["vllm-built-for-gpus"]),
        ("0.9.1", True, {}, True, ["vllm-too-old"]),
        ("0.32.0", True, {"ray.address": "auto"}, True, ["ray-not-installed"]),
    ],
)
def test_what_does_not_fit_is_refused_with_a_fix(
    home: Home, tmp_path: Path, version: str, uuids: bool, changes: dict[str, Any], with_gpu: bool, expected: list[str]
) -> None:
    program = install(tmp_path / "vllm", version, reads_uuids=uuids)
    assert ours(home, program, changes, gpus() if with_gpu else CPU) == expected


def test_a_slice_needs_a_vllm_that_reads_uuids(home: Home, tmp_path: Path) -> None:
    """Older ones end with `invalid literal for int()` (vLLM #41848); whole GPUs are counted for them instead."""
    old = install(tmp_path / "old", "0.20.1", reads_uuids=False)
    parent = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
    assert ours(home, old, {}, gpus(parent_uuid=parent)) == ["vllm-reads-no-uuids"]
    assert ours(home, old, {}, gpus()) == []


def test_a_named_command_that_is_not_there_is_not_replaced_by_another(home: Home, tmp_path: Path) -> None:
    assert planned(home, tmp_path / "nowhere" / "vllm")[1] == ["vllm-unusable"]
    bare = tmp_path / "bin" / "vllm"
    bare.parent.mkdir()
    bare.write_text("#!/bin/sh\n")
    assert planned(home, bare)[1] == ["vllm-unusable"]
    bare.chmod(0o755)
    assert planned(home, bare)[1] == ["vllm-unusable"]


@pytest.mark.parametrize(("changes", "field", "remedy"), [
    ({"ray": {"hosts": 2}}, "ray.hosts", "address"),
    ({"ray": {"hosts": 2, "address": "auto"}}, "ray.hosts", "pipeline-parallel-size to 2"),
    ({"ray": {"address": "no port"}}, "ray.address", "HOST:PORT"),
    ({"ray": {"addres": "auto"}}, "ray.addres", "`ray.address`"),
    ({"vllm": {"extra-args": {"task": "embed"}}}, "vllm.extra-args.task", "Use `runner`"),
    ({"vllm": {"extra-args": {"tool-call-parsr": "hermes"}}}, "vllm.extra-args.tool-call-parsr", "`tool-call-parser`"),
    ({"vllm": {"extra-args": {"tool-call-parser": "/tmp/x.py"}}}, "vllm.extra-args.tool-call-parser", "tool calls"),
    ({"vllm": {"extra-args": {"distributed-executor-backend": "my.Class"}}},
     "vllm.extra-args.distributed-executor-backend", "workers"),
    ({"vllm": {"extra-args": {"compilation-config": "{"}}}, "vllm.extra-args.compilation-config", "as JSON"),
    ({"vllm": {"extra-args": {"cudagraph-capture-sizes": "1 2"}}}, "vllm.extra-args.cudagraph-capture-sizes", "graphs"),
    ({"vllm": {"environment": {"VLLM_API_KEY": "x"}}}, "vllm.environment.VLLM_API_KEY", "Remove it"),
    ({"vllm": {"environment": {"VLLM_ATTENTION_BACKEND": "X"}}}, "vllm.environment.VLLM_ATTENTION_BACKEND",
     "`backends.attention`"),
    ({"vllm": {"environment": {"VLLM_HOST_IP": "10.0.0.1"}}}, "vllm.environment.VLLM_HOST_IP", "`ray.host-ip`"),
])  # fmt: skip
def test_options_are_judged_when_they_are_saved(changes: dict[str, Any], field: str, remedy: str) -> None:
    [problem] = check({"name": "a", "model": {"path": "m"}, "engine": "vllm"} | changes)
    assert problem.field == field
    assert remedy in problem.remedy


@pytest.mark.parametrize(("flag", "given", "key"), [
    ("compilation-config", {"backend": "package.module.function"}, "backend"),
    ("compilation-config", {"inductor_passes": {"post_grad_custom_post_pass": "package.f"}}, "inductor_passes"),
    ("compilation-config", {"inductor_compile_config": {"cpp.cxx": "/tmp/x"}}, "inductor_compile_config.cpp.cxx"),
    ("compilation-config", {"cache_dir": "/anywhere"}, "cache_dir"),
    ("compilation-config", {"debug_dump_path": "x"}, "debug_dump_path"),
    ("compilation-config", {"custom_ops": ["+rms_norm", "../x"]}, "custom_ops"),
    ("hf-overrides", {"auto_map": {"AutoModel": "m--f"}}, "auto_map"),
    ("hf-overrides", {"text_config": {"name_or_path": "other"}}, "text_config.name_or_path"),
    ("hf-overrides", {"architectures": ["my.module:Class"]}, "architectures"),
    ("mm-processor-kwargs", {"trust_remote_code": True}, "trust_remote_code"),
    ("mm-processor-kwargs", {"processor": {"image": "/x"}}, "processor.image"),
    ("structured-outputs-config", {"reasoning_parser_plugin": "x"}, "reasoning_parser_plugin"),
    ("default-chat-template-kwargs", {"chat_template": "{{ x }}"}, "chat_template"),
    ("limit-mm-per-prompt", {"image": {"path": 1}}, "image.path"),
    ("pooler-config", {"\x1b[31m": 1}, "\\x1b[31m"),
])  # fmt: skip
def test_no_json_makes_vllm_load_code_or_files(flag: str, given: dict[str, Any], key: str) -> None:
    """The key is named."""
    [problem] = options_problems(flag, given)
    assert problem.field == f"vllm.extra-args.{flag}"
    assert problem.message.startswith(f"`{key}` ")


@pytest.mark.parametrize(("flag", "given"), [
    ("compilation-config", {"mode": 3, "custom_ops": ["none", "+rms_norm"], "backend": "eager",
                            "splitting_ops": ["vllm::unified_attention"], "pass_config": {"fuse_norm_quant": True},
                            "inductor_compile_config": {"max_autotune": True}, "compile_sizes": [1, 2]}),
    ("hf-overrides", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}, "architectures": ["Qwen3Model"],
                      "num_classes": None}),
    ("mm-processor-kwargs", {"max_pixels": 1003520, "size": {"shortest_edge": 3136}}),
    ("limit-mm-per-prompt", {"image": 4, "video": {"count": 1, "num_frames": 32}}),
    ("pooler-config", {"task": "token_embed", "pooling_type": "MEAN", "use_activation": False}),
    ("structured-outputs-config", {"backend": "guidance", "enable_in_reasoning": True}),
    ("default-chat-template-kwargs", {"enable_thinking": False, "identity": "You are ACME's helper. See /help."}),
])  # fmt: skip
def test_json_that_tunes_a_run_may_be_given(flag: str, given: dict[str, Any]) -> None:
    assert options_problems(flag, given) == []


def test_every_flag_that_takes_json_has_a_list() -> None:
    assert set(OBJECTS) == {flag.name for flag in FLAGS if flag.kind == "json"}


def options_problems(flag: str, given: dict[str, Any]) -> list[Problem]:
    options = {"extra-args": {flag: json.dumps(given)}}
    return check({"name": "a", "model": {"path": "m"}, "engine": "vllm", "vllm": options})
