"""Preflight: every fault that can be known before the weights are read is found, named, and comes with its fix."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from appliance.hardware import Gpu, Host, Inventory
from appliance.home import Home
from appliance.plan.launch import NativePlan, inventory_after
from appliance.preflight import PreflightContext, Report, Surroundings, run
from appliance.preflight.printing import show
from appliance.preflight.registry import CHECKS
from appliance.profile.document import apply_patch
from appliance.profile.schema import SETTINGS
from appliance.protocol import Finding, Severity
from tests.tiny import write_checkpoint

GIB = 1 << 30
UUID = "GPU-12345678-1234-1234-1234-123456789abc"
GOOD: dict[str, Any] = {"name": "chat", "model": {"path": "tiny"}}


def machine(*, memory: int = 16 * GIB, gpu: Gpu | None = None, problem: str | None = None) -> Inventory:
    host = Host(cores=4, memory_bytes=memory, memory_available_bytes=memory)
    return Inventory(gpus=(gpu,) if gpu else (), driver_version=None, cuda_version=None, host=host, problem=problem)


def card(capability: tuple[int, int] = (9, 0), memory: int = 24 * GIB) -> Gpu:
    return Gpu(
        uuid=UUID, index=0, name="Card", memory_bytes=memory, memory_free_bytes=memory, compute_capability=capability
    )


@pytest.fixture
def tiny(home: Home) -> Path:
    return write_checkpoint(home.models / "tiny")


def look(home: Home, changes: dict[str, Any] | None = None, **context: Any) -> Report:
    # Kernels may be compiled where a test has a GPU: casts have tests of their own.
    environ = {"INGOT_JIT": "1"} | context.pop("environ", {})
    values: dict[str, Any] = {"document": apply_patch(GOOD, changes or {}), "environ": environ, "inventory": machine()}
    return run(PreflightContext(home=home, **values | context))


def only(report: Report, severity: Severity = Severity.ERROR) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.severity is severity]
    assert (report.plan is None) == any(f.severity is Severity.ERROR for f in report.findings)
    return finding


def test_a_good_profile_has_a_plan(home: Home, tiny: Path) -> None:
    """Nothing found; the plan is what the core needs, with every value resolved and its source known."""
    report = look(home)
    assert report.findings == []
    assert {check.outcome for check in report.checks} == {"passed"}
    plan = report.plan
    assert isinstance(plan, NativePlan)
    config = plan.engine_config()
    assert config.model_folder == str(tiny)
    assert (config.device, config.dtype, config.kv_cache_dtype) == ("cpu", "float32", "float32")
    assert config.max_model_len == plan.config.max_position_embeddings
    assert config.num_blocks * config.block_size >= config.max_model_len
    assert set(plan.effective.values) == {setting.key for setting in SETTINGS}
    sources = {key: plan.effective[key].source for key in ("name", "dtype", "max-model-len", "max-num-seqs", "device")}
    assert sources == {
        "name": "profile", "dtype": "engine", "max-model-len": "model", "max-num-seqs": "default", "device": "gpu"
    }  # fmt: skip
    assert plan.effective["backends.attention"].value == "torch"


def test_the_bundled_model_is_checked_within_a_tenth_of_a_second(home: Home) -> None:
    """Time to truth: the page asks while somebody types."""
    document = {"name": "bundled", "model": {"path": "bundled"}}
    report = look(home, document=document)
    if any(finding.id == "model-missing" for finding in report.findings):
        pytest.skip("the bundled model is not in this tree")
    assert report.plan is not None
    best = min(_seconds(lambda: look(home, document=document)) for _ in range(5))
    assert best < 0.1


def _seconds(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def _config(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def _cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def _remove(*names: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


@pytest.mark.parametrize(
    ("damage", "id", "field"),
    [
        (_remove("config.json"), "config-missing", None),
        (_remove("config.json", "tokenizer.json"), "model-incomplete", "model.path"),
        (_remove("tokenizer.json"), "tokenizer-missing", None),
        (_remove("model.safetensors"), "weights-missing", None),
        (_write("config.json", b"{oops"), "config-unreadable", None),
        (_config(hidden_size=-1), "config-invalid", "hidden_size"),
        (_config(architectures=["MambaForCausalLM"]), "architecture-unsupported", "architectures"),
        (_config(hidden_act="relu"), "architecture-unsupported", "hidden_act"),
        (_config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "architecture-unsupported", "rope_scaling"),
        (_config(rope_scaling={"rope_type": "longrope"}), "architecture-unsupported", "rope_scaling"),
        (_config(quantization_config={"quant_method": "gptq"}), "quantization-unsupported", "quantization_config"),
        (_cut("model.safetensors", 50_000), "safetensors-invalid", None),
        (_cut("model.safetensors", 20), "safetensors-invalid", None),
        (_config(num_hidden_layers=3), "tensor-missing", "model.layers.2.self_attn.q_proj.weight"),
        (_config(intermediate_size=64), "tensor-shape", "model.layers.0.mlp.gate_proj.weight"),
        (_write("tokenizer.json", b"{}"), "tokenizer-invalid", None),
        (_write("chat_template.jinja", b"{% if %}"), "chat-template-invalid", "chat_template"),
    ],
)
def test_a_damaged_model_is_one_error(home: Home, tiny: Path, damage: Any, id: str, field: str | None) -> None:
    """The fault itself, once; what builds on it is skipped rather than reported again."""
    damage(tiny)
    finding = only(look(home))
    assert finding.id == id
    assert field is None or finding.field == field
    assert finding.fix
    assert finding.fix.text


def test_a_vocabulary_larger_than_the_model_is_an_error(home: Home) -> None:
    """Its last ids would read beyond the embedding."""
    folder = write_checkpoint(home.models / "tiny", vocab_size=300)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["extra"] = 4000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    finding = only(look(home))
    assert (finding.id, finding.value) == ("tokenizer-too-large", 4001)


def test_weights_of_other_types_and_extra_ones(home: Home, tiny: Path) -> None:
    """A dtype that is not read is an error; tensors without a place are a warning."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    path = tiny / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)}, path)
    assert only(look(home), Severity.WARNING).id == "tensors-unused"
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int8)
    save_file(tensors, path)
    assert only(look(home)).id == "tensor-dtype"


def test_a_missing_shard_is_named(home: Home, tiny: Path) -> None:
    """And so is a shard that lacks what the index says."""
    (tiny / "model.safetensors").rename(tiny / "model-00001-of-00002.safetensors")
    names = ["model.norm.weight", "model.embed_tokens.weight"]
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = tiny / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict(zip(names, files, strict=True))}))
    finding = only(look(home))
    assert (finding.id, finding.value) == ("shard-missing", files[1])
    index.write_text(json.dumps({"weight_map": {"ghost": files[0]}}))
    assert only(look(home)).id == "tensor-missing"


@pytest.mark.parametrize(
    ("changes", "id", "field"),
    [
        ({"modl": 1}, "profile-invalid", "modl"),
        ({"max-num-seqs": "many"}, "profile-invalid", "max-num-seqs"),
        ({"gpu-memory-utilization": 3}, "profile-invalid", "gpu-memory-utilization"),
        ({"model.path": "../../etc"}, "model-outside", "model.path"),
        ({"model.path": "tinny"}, "model-missing", "model.path"),
        ({"model.path": "org/unknown"}, "model-is-hub-id", "model.path"),
        ({"model.digest": "sha256:" + "0" * 64}, "digest-differs", "model.digest"),
        ({"engine": "vllm"}, "engine-not-installed", "engine"),
        ({"device": UUID}, "device-missing", "device"),
        ({"max-model-len": 513}, "context-too-long", "max-model-len"),
        ({"tensor-parallel-size": 3}, "tensor-parallel-indivisible", "tensor-parallel-size"),
        ({"kv-cache-dtype": "fp8_e5m2"}, "kv-cache-dtype-unsupported", "kv-cache-dtype"),
        ({"backends.attention": "flashinfer"}, "backend-refused", "backends.attention"),
        ({"kv-cache-memory-bytes": 4096}, "memory-too-small", "kv-cache-memory-bytes"),
        ({"speculative-config.method": "mtp"}, "mtp-head-missing", "speculative-config.method"),
        (
            {"speculative-config.method": "ngram", "max-num-batched-tokens": 4},
            "drafts-exceed-step",
            "speculative-config.num-speculative-tokens",
        ),
        (
            {"speculative-config.method": "ngram", "max-num-batched-tokens": 1},
            "drafts-exceed-step",
            "speculative-config.num-speculative-tokens",
        ),
    ],
)
def test_a_profile_that_cannot_run_is_one_error(
    home: Home, tiny: Path, changes: dict[str, Any], id: str, field: str
) -> None:
    """It names the field; a fix that is a patch leads to a profile that can run."""
    here = {"surroundings": Surroundings.here()}
    finding = only(look(home, changes, **here))
    assert (finding.id, finding.field) == (id, field)
    assert finding.fix
    if finding.fix.patch:
        fixed = look(home, {**changes, **finding.fix.patch}, **here)
        assert fixed.plan is not None, fixed.findings


def test_every_problem_of_a_profile_is_a_finding(home: Home) -> None:
    """And nothing else is looked at."""
    report = look(home, document={"engine": "x", "device": 5})
    assert [finding.field for finding in report.findings] == ["name", "model.path", "engine", "device"]
    assert {check.outcome for check in report.checks if check.id not in ("profile", "port")} == {"skipped"}


def test_skipped_checks_are_one_line(home: Home) -> None:
    """Each by itself only where every check is asked for."""
    report = look(home, document={"name": "x", "engine": "x", "model": {"path": "tiny"}})
    skipped = sum(check.outcome == "skipped" for check in report.checks)
    assert skipped > 1
    for each, lines in ((False, 1), (True, skipped)):
        written = io.StringIO()
        show(report, Console(file=written, width=80, soft_wrap=True), each=each)
        told = [line.split() for line in written.getvalue().splitlines() if line.split()[:1] == ["skipped"]]
        assert len(told) == lines
        assert each or told[0][1] == str(skipped)


def test_values_are_printed_as_people_write_them() -> None:
    """Sizes with their unit and large numbers in groups; a port stays as it is."""
    values = {"kv-cache-memory-bytes": 900 << 30, "max-model-len": 32768, "prefix-caching": True, "port": 8000}
    findings = [
        Finding(id="x", severity=Severity.WARNING, message="x", field=field, value=value)
        for field, value in values.items()
    ]
    written = io.StringIO()
    show(Report(findings=findings, plan=None), Console(file=written, width=80, soft_wrap=True))
    printed = dict(line.strip().split(" = ") for line in written.getvalue().splitlines() if " = " in line)
    assert list(printed) == list(values)
    assert list(printed.values()) == ["900 GiB", "32,768", "True", "8000"]


def test_settings_without_effect_are_said(home: Home, tiny: Path) -> None:
    """A warning each: they keep nothing from starting."""
    number = "speculative-config.num-speculative-tokens"
    report = look(home, {"vllm.environment": {"NCCL_DEBUG": "INFO"}, "backends.moe": "triton", number: 2})
    assert report.plan is not None
    assert [(f.id, f.field) for f in report.findings] == [
        ("setting-unused", number),
        ("setting-unused", "vllm.environment"),
        ("setting-unused", "backends.moe"),
    ]


def test_settings_of_the_native_engine_have_no_effect_on_vllm(home: Home, tiny: Path) -> None:
    """It is told how to read answers by its own flags."""
    changes = {
        "chat-encoding": "deepseek-v3.2", "tool-call-parser": "hermes", "reasoning-parser": "none",
        "strict-requests": True, "response-store": 10,
    }  # fmt: skip
    fields = [f.field for f in look(home, {"engine": "vllm", **changes}).findings if f.id == "setting-unused"]
    assert fields == list(changes)


def test_memory_that_is_too_small_names_the_longest_context(home: Home) -> None:
    """And that length then fits. Shortened by itself where the profile leaves it open."""
    write_checkpoint(home.models / "tiny", max_position_embeddings=1 << 20, num_hidden_layers=8)
    small = machine(memory=2 * GIB)
    finding = only(look(home, {"max-model-len": 1 << 20}, inventory=small))
    assert finding.id == "memory-too-small"
    assert finding.fix
    assert finding.fix.patch
    assert look(home, finding.fix.patch, inventory=small).plan is not None
    assert any(line.startswith("weights ") for line in finding.evidence)
    report = look(home, inventory=small)
    assert only(report, Severity.WARNING).id == "context-shortened"
    assert report.plan is not None
    assert report.plan.effective["max-model-len"].source == "engine"
    assert only(look(home, inventory=machine(memory=GIB // 8))).id == "memory-too-small"


def test_a_gpu_is_taken_by_uuid(home: Home, tiny: Path) -> None:
    """The core sees that one GPU, whatever order CUDA counts in; a card without bfloat16 is reported."""
    plan = look(home, {"device": UUID}, inventory=machine(gpu=card())).plan
    assert isinstance(plan, NativePlan)
    config = plan.engine_config()
    assert config.device == "cuda:0"
    assert config.environment == {"CUDA_VISIBLE_DEVICES": UUID}
    finding = only(look(home, {"dtype": "bfloat16"}, inventory=machine(gpu=card((7, 5)))))
    assert (finding.id, finding.fix and finding.fix.patch) == ("dtype-unsupported", {"dtype": "float16"})
    write_checkpoint(home.models / "tiny", dtype="bfloat16")
    auto = look(home, inventory=machine(gpu=card((7, 5)))).plan
    assert isinstance(auto, NativePlan)
    assert (auto.dtype, auto.effective["dtype"].source) == ("float16", "gpu")
    assert look(home, {"dtype": "bfloat16"}).plan is not None  # on a CPU it is slow, and right


def test_what_the_running_engine_holds_counts_as_free(home: Home, tiny: Path) -> None:
    """An engine that fills the GPU does not keep its own successor from being activated: it ends first."""
    running = look(home, {"kv-cache-memory-bytes": "20 GiB"}, inventory=machine(gpu=card())).plan
    assert running is not None
    full = machine(gpu=msgspec.structs.replace(card(), memory_free_bytes=GIB // 5))
    refused = only(look(home, inventory=full))
    assert (refused.id, refused.transient) == ("memory-too-small", True)
    small = msgspec.structs.replace(card(), memory_bytes=GIB // 5, memory_free_bytes=GIB // 5)
    assert only(look(home, inventory=machine(gpu=small))).transient is False
    plan = look(home, inventory=full, running=running).plan
    assert plan is not None
    assert plan.memory.available_bytes > 20 * GIB
    on_host = look(home).plan
    assert on_host is not None
    replaced = look(home, running=on_host).plan
    assert replaced is not None
    assert replaced.memory.held_bytes == 0


def test_graphs_and_the_fixed_workspace_of_the_running_engine_count_as_free(home: Home, tiny: Path) -> None:
    """What a step takes may never have been allocated, so that does not."""
    running = look(home, {"kv-cache-memory-bytes": "1 GiB"}, inventory=machine(gpu=card())).plan
    assert running is not None
    memory = running.memory
    assert memory is not None
    assert msgspec.structs.replace(memory, graph_bytes=GIB).kept_bytes - memory.kept_bytes == GIB - memory.graph_bytes
    assert memory.workspace.runtime > 0
    full = machine(gpu=msgspec.structs.replace(card(), memory_free_bytes=GIB // 5))
    freed = inventory_after(full, running).gpus[0].memory_free_bytes - GIB // 5
    assert freed >= memory.weight_bytes + memory.cache_bytes + memory.graph_bytes + memory.workspace.runtime
    assert freed <= memory.needed_bytes - memory.workspace.step


def test_a_gpu_that_does_not_answer_is_said(home: Home, tiny: Path) -> None:
    """The model runs on the CPU, and the person learns why."""
    finding = only(look(home, inventory=machine(problem="The NVIDIA driver does not answer.")), Severity.WARNING)
    assert finding.id == "gpu-unusable"


def test_an_allocator_setting_that_breaks_graphs_is_refused(home: Home, tiny: Path) -> None:
    """With more than one GPU, from the environment."""
    environ = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}
    report = look(home, {"tensor-parallel-size": 2}, environ=environ)
    assert "allocator-breaks-graphs" in [finding.id for finding in report.findings]
    assert look(home, environ=environ).findings == []


def test_a_port_in_use_names_who_holds_it(home: Home, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of this user by pid, with its command but no secret of it; the front door of this state folder is no
    error; a free port is none."""
    command = ["serve", f"https://admin:{'p4' * 90}@host:8000"]
    monkeypatch.setattr("psutil.Process.cmdline", lambda process: command)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = ("127.0.0.1", holder.getsockname()[1])
        finding = only(look(home, listen=address))
        assert finding.id == "port-in-use"
        assert f"process {os.getpid()}" in finding.message
        assert "serve https://" in finding.message
        assert "p4p4" not in finding.message
        home.lock.write_text(json.dumps({"pid": os.getpid(), "host": "127.0.0.1", "port": address[1], "started": 0.0}))
        assert only(look(home, listen=address), Severity.INFO).id == "port-held-by-ingot"
    assert look(home, listen=address).findings == []


def test_an_address_of_another_machine_is_reported(home: Home, tiny: Path) -> None:
    """Not a traceback of the server."""
    assert only(look(home, listen=("192.0.2.1", 8000))).id == "port-unavailable"


def test_the_registry_is_in_order() -> None:
    """A check builds only on checks before it, and every file in checks/ has its row."""
    seen: set[str] = set()
    for check in CHECKS:
        assert seen.issuperset(check.after), check.id
        seen.add(check.id)
    files = {path.stem for path in Path(run.__code__.co_filename).parent.glob("checks/[a-z]*.py")}
    assert files == {check.run.__module__.rsplit(".", 1)[1] for check in CHECKS}


# --------------------------------------------------------------------------------------------------------------------
# ingot check
# --------------------------------------------------------------------------------------------------------------------


def ingot_check(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import sys; from appliance.preflight.check_command import check\n"
        "try: check(sys.argv[1:])\n"
        "finally: print(sorted({'torch', 'transformers', 'rich', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    return subprocess.run(
        [sys.executable, "-c", program, "--port", "0", *arguments],
        env=os.environ | {"INGOT_HOME": str(home.root)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_check_prints_for_people(home: Home, tiny: Path, tmp_path: Path) -> None:
    """Each check, each finding with its fix; exits with 1 on an error."""
    file = tmp_path / "p.yaml"
    file.write_text("name: chat\nmodel: {path: tiny}\n")
    good = ingot_check(home, "--profile", str(file))
    assert good.returncode == 0, good.stderr
    assert "chat is ready to start." in good.stdout
    assert "torch" not in good.stderr
    file.write_text("name: chat\nmodel: {path: tinny}\n")
    bad = ingot_check(home, "--profile", str(file))
    assert bad.returncode == 1
    assert "model.path: tiny" in bad.stdout
    assert "model.path: tiny" in bad.stdout


def test_check_writes_json_for_programs(home: Home, tiny: Path, tmp_path: Path) -> None:
    """Without importing rich, and within two seconds."""
    file = tmp_path / "p.yaml"
    file.write_text("name: chat\nmodel: {path: tiny}\nmax-model-len: 4096\n")
    before = os.times()
    ran = ingot_check(home, "--profile", str(file), "--json")
    after = os.times()  # of the processor: whatever else this machine does meanwhile is not the command's
    assert after.children_user + after.children_system - before.children_user - before.children_system < 2
    data = json.loads(ran.stdout)
    assert ran.returncode == 1
    assert data["could-start"] is False
    assert data["findings"][0]["fix"]["patch"] == {"max-model-len": 512}
    assert ran.stderr.strip() == "[]"


def test_check_takes_the_active_profile(home: Home, tiny: Path) -> None:
    """By default, and by its name; a missing file is reported."""
    from appliance.profile.active import ActiveProfile, write_active

    write_active(home, ActiveProfile(launch=None, revision="1", document=GOOD))
    for arguments in ((), ("--profile", "chat")):
        ran = ingot_check(home, *arguments, "--json")
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["effective"]["name"]["value"] == "chat"
    missing = ingot_check(home, "--profile", "other")
    assert missing.returncode == 2
    assert "active profile is chat" in missing.stderr
    home.active_profile.write_text("profile: [")
    broken = ingot_check(home, "--json")
    assert broken.returncode == 1
    assert "cannot be read" in json.loads(broken.stdout)["findings"][0]["message"]


def test_check_refuses_text_that_is_no_profile(home: Home, tmp_path: Path) -> None:
    """As a finding, with the line."""
    file = tmp_path / "p.yaml"
    file.write_text("name: a\nname: b\n")
    ran = ingot_check(home, "--profile", str(file), "--json")
    assert ran.returncode == 1
    assert "in line 1 and again in line 2" in json.loads(ran.stdout)["findings"][0]["message"]


def test_a_long_remedy_is_printed_whole_in_a_narrow_place(home):
    """Eighty columns must not cut off what to do."""
    document = {
        "name": "x",
        "model": {"path": "a-model-with-quite-a-long-name-that-is-not-there-at-all-in-this-folder"},
    }
    report = run(PreflightContext(home=home, document=document, environ={}, inventory=machine(), listen=None))
    written = io.StringIO()
    show(report, Console(file=written, width=80, soft_wrap=True))
    for finding in report.findings:
        for text in (finding.message, *finding.evidence, finding.fix.text):
            assert text in written.getvalue()
