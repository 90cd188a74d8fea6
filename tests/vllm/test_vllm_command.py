"""A profile as a command of vLLM: every setting arrives, nothing secret is in it, and nothing is fetched."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import structs

from appliance.hardware import Host, Inventory
from appliance.hardware.known import known_gpu
from appliance.home import Home
from appliance.packages import Packages
from appliance.preflight import PreflightContext, run
from appliance.preflight.check_command import check
from appliance.preflight.surroundings import Surroundings
from appliance.profile.document import apply_patch
from appliance.profile.schema import SETTINGS
from appliance.vllm.command_line import NO_DOMAIN, NOT_INHERITED, UNUSED_FOLDERS, Command, Place, render
from appliance.vllm.plan import VllmPlan
from appliance.vllm.settings import FLAGS, OTHERWISE
from appliance.vllm.weight_files import weight_files
from tests.tiny import write_checkpoint
from tests.vllm.stand_in import install

GIB = 1 << 30
HOST = Host(cores=4, memory_bytes=64 * GIB, memory_available_bytes=64 * GIB)
CPU = Inventory(gpus=(), driver_version=None, cuda_version=None, host=HOST, problem=None)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("vllm")
    return {
        "cpu": install(folder / "cpu"),
        "cuda": install(folder / "cuda", "0.32.0", ray="2.50.0"),
        "old": install(folder / "old", "0.12.0", reads_uuids=False),
    }


def gpus(count: int = 1, **fields: Any) -> Inventory:
    one = known_gpu("H100").as_gpu()
    several = tuple(
        structs.replace(one, index=index, uuid=f"GPU-{index:08d}-0000-0000-0000-000000000000", **fields)
        for index in range(count)
    )
    return Inventory(gpus=several, driver_version="580.65", cuda_version="13.0", host=HOST, problem=None)


def planned(
    home: Home, program: Path, changes: dict[str, Any] | None = None, inventory: Inventory = CPU, *, local: bool = False
) -> tuple[VllmPlan | None, list[str]]:
    """The plan, and the ids of the errors that stand against it."""
    if not (home.models / "tiny").exists():
        write_checkpoint(home.models / "tiny", dtype="bfloat16", head_dim=64)
    document = apply_patch({"name": "chat", "engine": "vllm", "model": {"path": "tiny"}}, changes or {})
    context = PreflightContext(
        home=home,
        document=document,
        environ={"INGOT_VLLM": str(program)},
        inventory=inventory,
        surroundings=Surroundings() if local else None,
    )
    report = run(context)
    plan = report.plan
    assert plan is None or isinstance(plan, VllmPlan)
    return plan, [finding.id for finding in report.findings if finding.severity == "error"]


def command(home: Home, program: Path, changes: dict[str, Any] | None = None, inventory: Inventory = CPU) -> Command:
    plan, errors = planned(home, program, changes, inventory)
    assert plan is not None, errors
    return render(plan, Place(socket=Path("/run/v.sock"), caches=home.root / "caches"))


def test_every_setting_becomes_a_flag_or_says_where_else_it_goes() -> None:
    rendered = {row.key for row in FLAGS}
    assert rendered | OTHERWISE == {setting.key for setting in SETTINGS}
    assert not rendered & OTHERWISE


def test_the_least_profile_leaves_the_defaults_to_vllm(home: Home, programs: dict[str, Path]) -> None:
    """What it says besides: where it listens, how much it takes, whose sampling defaults hold, and that no picture is
    fetched for a request."""
    assert command(home, programs["cpu"]).arguments == (
        str(programs["cpu"]), "serve", str(home.models / "tiny"), "--uds=/run/v.sock", "--served-model-name=chat",
        "--max-num-seqs=256", "--max-num-batched-tokens=2048", "--max-model-len=512", "--generation-config=vllm",
        f"--allowed-media-domains={NO_DOMAIN}", "--disable-uvicorn-access-log",
    )  # fmt: skip


NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"served-model-name": "org/name"}, "--served-model-name=org/name"),
        ({"dtype": "float16"}, "--dtype=float16"),
        ({"max-model-len": 128}, "--max-model-len=128"),
        ({"max-num-seqs": 7}, "--max-num-seqs=7"),
        ({"max-num-batched-tokens": 900}, "--max-num-batched-tokens=900"),
        ({"block-size": 32}, "--block-size=32"),
        ({"gpu-memory-utilization": 0.5}, "--gpu-memory-utilization=0.5"),
        ({"kv-cache-dtype": "fp8"}, "--kv-cache-dtype=fp8"),
        ({"kv-cache-memory-bytes": "3 GiB"}, f"--kv-cache-memory-bytes={3 * GIB}"),
        ({"enforce-eager": True}, "--enforce-eager"),
        ({"prefix-caching": False}, "--no-enable-prefix-caching"),
        ({"speculative-config.method": "ngram"}, f"--speculative-config={json.dumps(NGRAM)}"),
        ({"backends.attention": "triton"}, "--attention-backend=TRITON_ATTN"),
        ({"vllm.extra-args.seed": -3}, "--seed=-3"),
        ({"vllm.extra-args.enable-chunked-prefill": False}, "--no-enable-chunked-prefill"),
        ({"vllm.extra-args.hf-overrides": '{"a b": "c"}'}, '--hf-overrides={"a b": "c"}'),
        # What is given by hand wins over what the profile would say.
        ({"vllm.extra-args.generation-config": "auto"}, "--generation-config=auto"),
        ({"vllm.extra-args.block-size": 16}, "--block-size=16"),
    ],
)  # fmt: skip
def test_a_setting_arrives(home: Home, programs: dict[str, Path], changes: dict[str, Any], expected: str) -> None:
    arguments = command(home, programs["cuda"], changes, gpus()).arguments
    assert expected in arguments
    name = expected.partition("=")[0]
    assert len([word for word in arguments if word.partition("=")[0] == name]) == 1


def test_a_list_is_several_words(home: Home, programs: dict[str, Path]) -> None:
    arguments = command(home, programs["cpu"], {"vllm.extra-args.cudagraph-capture-sizes": [1, 2, 4]}).arguments
    assert arguments[-4:] == ("--cudagraph-capture-sizes", "1", "2", "4")


def test_sampling_defaults_are_those_of_the_profile(home: Home, programs: dict[str, Path]) -> None:
    changes = {"sampling-defaults.temperature": 0.5, "sampling-defaults.max-tokens": 9, "sampling-defaults.top-k": 4}
    [word] = [w for w in command(home, programs["cpu"], changes).arguments if "override" in w]
    assert json.loads(word.partition("=")[2]) == {"temperature": 0.5, "max_new_tokens": 9, "top_k": 4}


def test_nothing_calls_out_and_everything_is_written_below_the_state_folder(
    home: Home, programs: dict[str, Path]
) -> None:
    environment = command(home, programs["cpu"]).environment
    assert all(environment[name] == "1" for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS"))
    assert environment["FLASHINFER_CUBINS_REPOSITORY"].startswith("http://127.0.0.1:")
    ends = ("_ROOT", "_DIR", "_BASE", "_HOME", "_PATH")
    folders = {name: Path(value) for name, value in environment.items() if name.endswith(ends)}
    unused = {folders.pop(name) for name in UNUSED_FOLDERS}
    assert len(folders) >= 8
    assert all(folder.is_relative_to(home.root / "caches") for folder in folders.values())
    for folder in unused:  # the same on every machine, and nothing can be there
        with pytest.raises(OSError, match="Not a directory"):
            folder.mkdir(parents=True)


def test_what_is_compiled_is_found_again_in_another_place(home: Home, programs: dict[str, Path]) -> None:
    """vLLM 0.24 hashes every variable of its own that it does not list as harmless, paths as well."""
    listed = {"VLLM_CACHE_ROOT", "VLLM_CPU_KVCACHE_SPACE", "VLLM_LOGGING_COLOR", "VLLM_NO_USAGE_STATS",
              "VLLM_DO_NOT_TRACK", "VLLM_MEDIA_URL_ALLOW_REDIRECTS"}  # fmt: skip
    plan, _ = planned(home, programs["cpu"], None, CPU)
    assert plan is not None
    one, other = (
        {name: value for name, value in render(plan, place).environment.items() if name.startswith("VLLM_")}
        for place in (Place.below(home), Place(socket=Path("/run/other.sock"), caches=Path("/elsewhere")))
    )
    assert one.keys() - listed == set(UNUSED_FOLDERS)
    assert {name for name in one if one[name] != other[name]} == {"VLLM_CACHE_ROOT"}


def test_the_cache_of_a_cpu_is_said_in_whole_gibibytes(home: Home, programs: dict[str, Path]) -> None:
    """And planned so, that the plan says what vLLM takes."""
    changes = {"kv-cache-memory-bytes": 5 * GIB // 2}
    plan, _ = planned(home, programs["cpu"], changes)
    assert plan.memory.cache_bytes == 3 * GIB
    assert command(home, programs["cpu"], changes).environment["VLLM_CPU_KVCACHE_SPACE"] == "3"


@pytest.mark.parametrize("free_gib", [4, 20, 64])
def test_the_cache_of_a_cpu_is_modest(home: Home, programs: dict[str, Path], free_gib: int) -> None:
    """Left to itself vLLM takes nearly all memory of the machine; and a plan that leaves nothing free is refused by it
    minutes later, since other programs have grown by then."""
    host = structs.replace(HOST, memory_available_bytes=free_gib * GIB)
    inventory = structs.replace(CPU, host=host)
    plan, errors = planned(home, programs["cpu"], {}, inventory)
    assert errors == []
    assert plan.memory.cache_bytes == GIB
    assert plan.memory.needed_bytes < 3 * GIB
    assert command(home, programs["cpu"], {}, inventory).environment["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_on_a_cpu_one_long_request_gets_the_cache_that_it_needs(home: Home, programs: dict[str, Path]) -> None:
    write_checkpoint(home.models / "long", dtype="bfloat16", num_hidden_layers=8, max_position_embeddings=1 << 20)
    plan, _ = planned(home, programs["cpu"], {"model.path": "long"})
    assert plan.memory.cache_bytes == 2 * GIB
    assert plan.max_model_len == 1 << 20


def test_gpus_are_named_by_uuid_where_vllm_reads_that_and_counted_where_not(
    home: Home, programs: dict[str, Path]
) -> None:
    changes = {"tensor-parallel-size": 2}
    inventory = gpus(3)
    new = command(home, programs["cuda"], changes, inventory).environment
    assert new["CUDA_VISIBLE_DEVICES"] == ",".join(gpu.uuid for gpu in inventory.gpus[:2])
    old = command(home, programs["old"], changes, inventory).environment
    assert (old["CUDA_VISIBLE_DEVICES"], old["CUDA_DEVICE_ORDER"]) == ("0,1", "PCI_BUS_ID")


def test_several_hosts_go_through_ray(home: Home, programs: dict[str, Path]) -> None:
    """Ray gives its workers their GPUs: the launch names none."""
    changes = {
        "tensor-parallel-size": 2, "vllm.extra-args.pipeline-parallel-size": 2, "ray.hosts": 2,
        "ray.address": "10.0.0.1:6379", "ray.host-ip": "10.0.0.1", "ray.network-interface": "eth0",
    }  # fmt: skip
    made = command(home, programs["cuda"], changes, gpus(2))
    assert "--distributed-executor-backend=ray" in made.arguments
    assert "--pipeline-parallel-size=2" in made.arguments
    assert made.environment["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert made.environment["VLLM_HOST_IP"] == "10.0.0.1"
    assert made.environment["NCCL_SOCKET_IFNAME"] == made.environment["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "CUDA_VISIBLE_DEVICES" not in made.environment


def test_what_would_open_vllm_is_not_inherited(home: Home, programs: dict[str, Path]) -> None:
    """A key of vLLM's own would shut the front door out; the others open routes that it does not pass on."""
    inherited = dict.fromkeys(NOT_INHERITED, "1") | {"INGOT_HOME": "x", "PATH": "/bin", "NCCL_DEBUG": "INFO"}
    made = command(home, programs["cpu"], {"vllm.environment": {"NCCL_DEBUG": "WARN"}})
    environment = made.whole_environment(inherited)
    assert not environment.keys() & NOT_INHERITED
    assert "INGOT_HOME" not in environment
    assert (environment["PATH"], environment["NCCL_DEBUG"]) == ("/bin", "WARN")


FORKS = "VLLM_WORKER_MULTIPROC_METHOD"


@pytest.mark.parametrize(
    ("changes", "inventory"),
    [
        ({}, CPU),
        ({"tensor-parallel-size": 2}, gpus(2)),
        ({"vllm.extra-args.data-parallel-size": 2}, gpus(2)),
        ({"model.path": "speech"}, gpus()),
    ],
    ids=["a CPU", "two GPUs", "two engines", "a model that Ingot cannot read"],
)
def test_the_engine_is_forked_on_one_gpu_only(
    home: Home, programs: dict[str, Path], changes: dict[str, Any], inventory: Inventory
) -> None:
    """And for models that Ingot knows: there vLLM has started no threads by then, and not used CUDA."""
    program = programs["cuda" if inventory.gpus else "cpu"]
    assert command(home, programs["cuda"], {}, gpus()).whole_environment({})[FORKS] == "fork"
    speech = write_checkpoint(home.models / "speech", dtype="bfloat16", head_dim=64)
    (speech / "config.json").write_text(
        '{"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}'
    )
    assert FORKS not in command(home, program, changes, inventory).whole_environment({})


def test_how_processes_start_may_be_said_otherwise(home: Home, programs: dict[str, Path]) -> None:
    """By the profile, which says it last, or by whoever starts the front door."""
    said = command(home, programs["cuda"], {f"vllm.environment.{FORKS}": "spawn"}, gpus())
    assert said.whole_environment({FORKS: "fork"})[FORKS] == "spawn"
    default = command(home, programs["cuda"], {}, gpus())
    assert default.whole_environment({FORKS: "spawn"})[FORKS] == "spawn"
    for inherited, shown in (({}, "fork"), ({FORKS: "spawn"}, "spawn")):
        assert f"{FORKS}={shown}" in shlex.split(default.shown(inherited))
    assert f"{FORKS}=spawn" in shlex.split(said.shown({FORKS: "fork"}))


def test_bytecode_is_kept_where_nobody_has_compiled_it(home: Home, programs: dict[str, Path]) -> None:
    """Else each process would compile thousands of files. What our own Python may not write is no matter of vLLM's."""
    plan, _ = planned(home, programs["cuda"], {}, gpus())
    assert plan is not None
    places = []
    for needs in (False, True):
        made = render(replace(plan, needs_bytecode=needs), Place.below(home))
        environment = made.whole_environment({"PYTHONDONTWRITEBYTECODE": "1"})
        assert "PYTHONDONTWRITEBYTECODE" not in environment
        places.append(environment.get("PYTHONPYCACHEPREFIX"))
    assert places == [None, str(home.root / "caches" / "vllm-bytecode")]
    own = {"PYTHONPYCACHEPREFIX": "/var/cache/python"}
    assert made.whole_environment(own)["PYTHONPYCACHEPREFIX"] == "/var/cache/python"
    assert "PYTHONPYCACHEPREFIX=/var/cache/python" in shlex.split(made.shown(own))


def test_bytecode_is_missing_where_none_is_and_nobody_may_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    packages = Packages((tmp_path,))
    assert not packages.lacks_bytecode("torch")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # as root is not
    assert packages.lacks_bytecode("torch")
    assert not packages.lacks_bytecode("vllm")
    (tmp_path / "torch" / "__pycache__").mkdir()
    (tmp_path / "torch" / "__pycache__" / "__init__.cpython-311.pyc").touch()
    assert not packages.lacks_bytecode("torch")


@pytest.mark.parametrize(("load_format", "names"), [
    (None, ["model.safetensors"]), ("safetensors", ["model.safetensors"]), ("dummy", []), ("mistral", []),
])  # fmt: skip
def test_weights_are_the_files_of_the_index(
    home: Home, programs: dict[str, Path], load_format: str | None, names: list[str]
) -> None:
    """Mistral's checkpoints hold the same weights a second time, for another loader."""
    changes = {"vllm.extra-args.load-format": load_format} if load_format else {}
    plan, _ = planned(home, programs["cpu"], changes)
    assert plan is not None
    (plan.folder / "consolidated.safetensors").write_bytes(b"of Mistral's own loader")
    assert [path.name for path in weight_files(plan)] == names
    (plan.folder / "model.safetensors").write_bytes(b"cut off")
    assert weight_files(plan) == ()


def test_the_command_is_shown_as_a_shell_would_take_it(home: Home, programs: dict[str, Path]) -> None:
    made = command(home, programs["cpu"], {"vllm.extra-args.hf-overrides": '{"a": 1}'})
    words = shlex.split(made.shown({}))
    assert tuple(words[len(made.environment) :]) == made.arguments
    assert dict(word.split("=", 1) for word in words[: len(made.environment)]) == made.environment


def test_check_shows_the_command(home: Home, programs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """To people, and as JSON to programs."""
    write_checkpoint(home.models / "tiny")
    profile = home.root / "profile.yaml"
    profile.write_text("name: chat\nengine: vllm\ndevice: cpu\nmodel: {path: tiny}\n")
    monkeypatch.setenv("INGOT_VLLM", str(programs["cpu"]))
    options = ["--profile", str(profile), "--port", "0"]
    shown = CliRunner().invoke(check, options)
    line = next(line for line in shown.output.splitlines() if line.startswith("It runs "))
    assert f"{programs['cpu']} serve {home.models / 'tiny'}" in line
    assert json.loads(CliRunner().invoke(check, [*options, "--json"]).output)["command"] in line


def test_a_known_fault_is_kept_from_where_vllm_would_choose_it_by_itself(home: Home, programs: dict[str, Path]) -> None:
    """This model has no FP8 layer: DeepGEMM's warm-up is not entered (vLLM #41849). What has no fault is left to it."""
    made = command(home, programs["cuda"], {}, gpus())
    assert made.environment["VLLM_DEEP_GEMM_WARMUP"] == "skip"
    assert not [word for word in made.arguments if word.startswith("--attention-backend")]
