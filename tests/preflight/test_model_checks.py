"""What a model asks of engine and GPU: quantisation, number formats, context, architecture; and the offer of the other
engine where that runs what this one does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.home import Home
from appliance.preflight import Surroundings
from appliance.protocol import Severity
from appliance.vllm.source import Method, vllm_source
from appliance.vllm_program import find_program
from kernels.catalogue import OPS
from kernels.selection import Context, explain
from tests.preflight.machines import ids, install, look, one, recorded, sane, vllm, write
from tests.tiny import FP8, write_checkpoint

VLLM: dict[str, Any] = {"engine": "vllm"}


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, Any]:
    """An H200 with both engines."""
    around = sane(tmp_path / "root", install(tmp_path / "native"))
    environ = {"INGOT_VLLM": str(vllm(tmp_path / "vllm"))}
    return {"inventory": recorded("h200-x8"), "surroundings": around, "environ": environ}


def model(home: Home, **config: Any) -> None:
    path = write_checkpoint(home.models / "tiny", dtype="bfloat16", head_dim=64) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


# --------------------------------------------------------------------------------------------------------------------
# The other engine
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["MambaForCausalLM"]},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
    ],
)
def test_vllm_is_offered_where_it_is_installed_and_knows_the_model(
    home: Home, machine: dict[str, Any], config: dict[str, Any]
) -> None:
    """With one click: choices of backends that vLLM does not have go with it."""
    model(home, **config)
    changes: dict[str, Any] = {"backends.attention": "torch"}
    report = look(home, changes, **machine)
    [finding] = [f for f in report.findings if f.severity is Severity.ERROR]
    assert finding.fix.patch == {"engine": "vllm", "backends.attention": None}
    after = look(home, {"engine": "vllm"}, **machine)
    assert finding.id not in ids(after)


def test_vllm_is_offered_for_a_choice_that_the_native_engine_lacks(
    home: Home, machine: dict[str, Any], tmp_path: Path
) -> None:
    registry = tmp_path / "vllm/lib/python3.12/site-packages/vllm/model_executor/models/registry.py"
    registry.write_text(registry.read_text().replace("Mamba", "DeepseekV3"))
    write_checkpoint(home.models / "tiny", "deepseek_v3", dtype="bfloat16", scoring_func="softmax")
    finding = one(look(home, only="architecture", **machine))
    assert (finding.id, finding.field, finding.value) == ("architecture-unsupported", "scoring_func", "softmax")
    assert finding.fix.patch == {"engine": "vllm"}


def test_what_vllm_does_not_know_either_is_not_offered(home: Home, machine: dict[str, Any]) -> None:
    model(home, architectures=["UnheardOfForCausalLM"])
    finding = one(look(home, only="architecture", **machine))
    assert finding.fix.patch is None
    assert "UnheardOfForCausalLM" in finding.fix.text
    machine["environ"] = {"INGOT_VLLM": None, "PATH": "/nowhere"}
    assert "vLLM is not installed" in one(look(home, only="architecture", **machine)).fix.text


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ({"hidden_act": "quux"}, "quux"),
        ({"hidden_act": "relu2"}, "relu2"),  # vLLM runs these families with silu alone
        ({"rope_scaling": {"rope_type": "quux"}}, "quux"),
        ({"quantization_config": {"quant_method": 7}}, "an unnamed method"),
        ({"quantization_config": {"quant_method": "quux"}}, "quux"),
        ({"quantization_config": {"bits": 4}}, "an unnamed method"),
    ],
)
def test_vllm_is_not_offered_for_what_it_would_refuse(
    home: Home, machine: dict[str, Any], config: dict[str, Any], value: str
) -> None:
    model(home, **config)
    [finding] = [f for f in look(home, **machine).findings if f.severity is Severity.ERROR]
    assert finding.value == value
    assert finding.fix.patch is None
    assert "Use vLLM" not in finding.fix.text


def test_a_model_that_vllm_does_not_know_is_refused_before_it_starts(home: Home, machine: dict[str, Any]) -> None:
    """vLLM #11155. A model of ours goes back to our engine."""
    model(home, architectures=["CodeShellForCausalLM"], auto_map={"AutoModel": "modeling.CodeShell"})
    finding = one(look(home, VLLM, only="architecture", **machine))
    assert (finding.id, finding.severity) == ("architecture-unknown-to-vllm", Severity.ERROR)
    assert any("auto_map" in line for line in finding.evidence)
    model(home, architectures=["Qwen3ForCausalLM"])  # the vLLM of these tests has two models
    assert one(look(home, VLLM, only="architecture", **machine)).fix.patch == {"engine": "native"}


def test_a_model_that_only_transformers_knows_is_a_warning(home: Home, machine: dict[str, Any], tmp_path: Path) -> None:
    """vLLM wraps it; one that transformers does not list either is refused."""
    packages = tmp_path / "vllm/lib/python3.12/site-packages"
    registry = packages / "vllm/model_executor/models/registry.py"
    registry.write_text(registry.read_text() + '_TRANSFORMERS_MODELS = {"TransformersForCausalLM": 1}\n')
    write(packages, {"transformers/models/auto/modeling_auto.py": '("olmo", "OlmoForCausalLM"),'})
    for architecture, severity in (("OlmoForCausalLM", Severity.WARNING), ("NopeForCausalLM", Severity.ERROR)):
        model(home, architectures=[architecture])
        assert one(look(home, VLLM, only="architecture", **machine)).severity is severity


def test_code_of_another_repository_is_needed_only_where_vllm_has_none(home: Home, machine: dict[str, Any]) -> None:
    """Published configs of known models name such code as well, and nobody fetches it."""
    remote = {"AutoModelForCausalLM": "org/other--modeling_x.XForCausalLM"}
    model(home, auto_map=remote)
    assert look(home, VLLM, only="hub-access", **machine).findings == []
    model(home, auto_map=remote, architectures=["XForCausalLM"])
    assert one(look(home, VLLM, only="hub-access", **machine)).id == "hub-needed"


def test_vllm_takes_other_tokenizers_and_needs_one(home: Home, machine: dict[str, Any]) -> None:
    model(home)
    (home.models / "tiny/tokenizer.json").rename(home.models / "tiny/tokenizer.model")
    assert look(home, VLLM, only="hub-access", **machine).findings == []
    assert look(home, VLLM, only="tokenizer", **machine).findings == []
    (home.models / "tiny/tokenizer.model").unlink()
    assert one(look(home, VLLM, only="hub-access", **machine)).id == "tokenizer-missing"


def test_the_installed_vllm_is_read_as_it_is_written(tmp_path: Path) -> None:
    """Names of removed models are not known ones; a base class answers for its children; what is not written as a
    constant is unknown."""
    source = vllm_source(find_program({"INGOT_VLLM": str(vllm(tmp_path))}))
    assert source.architectures == {"LlamaForCausalLM", "MambaForCausalLM"}
    assert source.methods == {
        "awq": Method(75, ("float16",)), "fp8": Method(None, ()), "mxfp4": Method(80, ()),
    }  # fmt: skip
    assert source.version == "0.32.0"
    assert "VLLM_LOGGING_LEVEL" in source.variables
    assert source.choices == {
        "VLLM_WORKER_MULTIPROC_METHOD": ("spawn", "fork"), "VLLM_KV_CACHE_LAYOUT": ("NHD", "HND"),
    }  # fmt: skip
    (source.folder / "config/cache.py").write_text("class (")
    assert vllm_source(find_program({"INGOT_VLLM": str(vllm(tmp_path / "other"))})).cache_dtypes
    nothing = vllm_source(find_program({"INGOT_VLLM": str(tmp_path / "wrapper.sh")}))
    assert (nothing.architectures, nothing.methods, nothing.variables) == (frozenset(), {}, frozenset())
    assert nothing.choices == {}


# --------------------------------------------------------------------------------------------------------------------
# Quantisation and number formats
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "gpu", "changes", "found"),
    [
        ({"quant_method": "awq"}, "h200-x8", {}, []),
        ({"quant_method": "awq"}, "old-driver", {}, ["quantization-needs-newer-gpu"]),  # sm_70
        ({"quant_method": "awq"}, "h200-x8", {"dtype": "bfloat16"}, ["quantization-dtype"]),  # vLLM #14456
        ({"quant_method": "awq"}, "h200-x8", {"dtype": "float16"}, []),
        ({"quant_method": "gptq"}, "h200-x8", {}, ["quantization-unknown"]),
        ({"quant_method": "mxfp4"}, "h200-x8", {}, []),
        ({"quant_method": "mxfp4"}, "a100-mig", {}, ["quantization-emulated"]),
        ({"quant_method": "mxfp4"}, "old-driver", {}, ["quantization-needs-newer-gpu"]),
        ({"quant_method": "fp8"}, "h200-x8", {}, []),
        ({"quant_method": "fp8"}, "a100-mig", {}, ["quantization-emulated"]),
        ({"quant_method": "fp8"}, "none", {"dtype": "float32"}, []),
        (None, "old-driver", {}, []),
        ({"quant_method": "awq"}, "h200-x8", {"vllm.extra-args.quantization": "fp8"}, ["quantization-contradicts"]),
        ({"quant_method": "awq"}, "h200-x8", {"vllm.extra-args.quantization": "awq_marlin"}, []),
        ({"quant_method": 7}, "h200-x8", {}, []),
        ("awq", "h200-x8", {}, []),
    ],
)
def test_quantisation_is_held_against_gpu_and_engine(
    home: Home, machine: dict[str, Any], given: Any, gpu: str, changes: dict[str, Any], found: list[str]
) -> None:
    model(home, **({"quantization_config": given} if given is not None else {}))
    machine["inventory"] = recorded(gpu)
    report = look(home, VLLM | changes, only="quantization", **machine)
    assert ids(report) == found
    for finding in report.findings:
        if finding.fix.patch:
            after = look(home, VLLM | changes | finding.fix.patch, only="quantization", **machine)
            assert finding.id not in ids(after)


@pytest.mark.parametrize("gpu", ["h200-x8", "rtx-pro-6000", "a100-mig"])
def test_no_fp8_library_is_demanded_of_a_model_without_fp8(home: Home, machine: dict[str, Any], gpu: str) -> None:
    """vLLM #41849: DeepGEMM's warm-up was entered for every model. Nothing here asks for it, and selection skips it
    although it is installed."""
    model(home)
    machine["inventory"] = recorded(gpu)
    text = " ".join(f.message for f in look(home, VLLM, **machine).findings).lower()
    assert "gemm" not in text
    assert "fp8" not in text
    capability = machine["inventory"].gpus[0].compute_capability
    context = Context("cuda", capability, "bfloat16", engine="vllm", libraries={"deep_gemm": "2.0"})
    [warm_up] = [explained for explained in explain(OPS, context) if explained.op.name == "deep_gemm_warmup"]
    assert warm_up.chosen is not None
    assert warm_up.chosen.name == "skip"


@pytest.mark.parametrize(
    ("engine", "wanted", "found"),
    [("vllm", "fp8_e5m2", False), ("vllm", "float32", True), ("native", "fp8_e5m2", True), ("native", "fp8", False)],
)
def test_the_caches_format_is_one_that_the_engine_has(
    home: Home, machine: dict[str, Any], engine: str, wanted: str, found: bool
) -> None:
    model(home)
    changes = {"engine": engine, "kv-cache-dtype": wanted}
    report = look(home, changes, only="dtype", **machine)
    assert ids(report) == (["kv-cache-dtype-unsupported"] if found else [])
    for finding in report.findings:
        assert ("vLLM" in finding.message) == (engine == "vllm")
        assert look(home, changes | finding.fix.patch, only="dtype", **machine).findings == []


def test_bfloat16_needs_ampere_in_either_engine(home: Home, machine: dict[str, Any]) -> None:
    """vLLM #3503."""
    model(home)
    machine["inventory"] = recorded("old-driver")
    for engine in ("native", "vllm"):
        changes = {"engine": engine, "dtype": "bfloat16"}
        finding = one(look(home, changes, only="dtype", **machine))
        assert finding.id == "dtype-unsupported"
        assert look(home, changes | finding.fix.patch, only="dtype", **machine).findings == []


# --------------------------------------------------------------------------------------------------------------------
# Context
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "wanted", "severity"),
    [
        ({}, 512, None),
        ({}, 513, Severity.ERROR),  # vLLM #20461
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 2048, None),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 2049, Severity.ERROR),
        # Whether yarn's length is counted already differs between versions: said, and not refused.
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}}, 2048,
         Severity.WARNING),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 513, Severity.ERROR),
        ({"max_position_embeddings": None, "n_positions": 256}, 257, Severity.ERROR),
        ({"max_position_embeddings": None}, 100_000, None),
        ({"text_config": {"max_position_embeddings": 128}}, 129, Severity.ERROR),
        ({"rope_scaling": "nonsense"}, 512, None),
        ({"rope_scaling": {"rope_type": "linear", "factor": "many"}}, 513, Severity.ERROR),
    ],
)  # fmt: skip
def test_vllm_is_not_asked_for_more_than_the_model_was_made_for(
    home: Home, machine: dict[str, Any], config: dict[str, Any], wanted: int, severity: Severity | None
) -> None:
    model(home, architectures=["MambaForCausalLM"], **config)
    changes = VLLM | {"max-model-len": wanted}
    report = look(home, changes, only="context-length", **machine)
    assert [finding.severity for finding in report.findings] == ([severity] if severity else [])
    for finding in report.findings:
        assert look(home, changes | finding.fix.patch, only="context-length", **machine).findings == []


def test_a_tokenizers_limit_counts_for_vllm_and_what_lets_it_pass_is_known(home: Home, machine: dict[str, Any]) -> None:
    model(home)
    settings = home.models / "tiny/tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 100}))
    changes = VLLM | {"max-model-len": 200}
    assert one(look(home, changes, only="context-length", **machine)).severity is Severity.ERROR
    machine["environ"] = machine["environ"] | {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    assert one(look(home, changes, only="context-length", **machine)).severity is Severity.WARNING
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 1e30}))
    assert look(home, changes, only="context-length", **machine).findings == []


# --------------------------------------------------------------------------------------------------------------------
# Casts
# --------------------------------------------------------------------------------------------------------------------


def test_a_gpu_for_which_nothing_can_be_cast_is_not_sent_to_cast(home: Home, machine: dict[str, Any]) -> None:
    """sm_70 runs in plain torch, which is said; a cast that is named all the same is to be unset."""
    model(home)
    machine["inventory"] = recorded("old-driver")
    machine["environ"] = {"INGOT_JIT": None}
    finding = one(look(home, {"dtype": "float16"}, only="cast", **machine))
    assert (finding.id, finding.severity) == ("gpu-without-kernels", Severity.WARNING)
    machine["environ"] |= {"INGOT_CAST": "/casts/sm_120"}
    finding = one(look(home, {"dtype": "float16"}, only="cast", **machine))
    assert (finding.severity, finding.fix.command) == (Severity.ERROR, "unset INGOT_CAST")


def test_the_command_that_casts_names_the_profile(home: Home, machine: dict[str, Any]) -> None:
    """So that it casts what this model needs and no more."""
    model(home)
    machine["environ"] = {"INGOT_JIT": None}
    finding = one(look(home, only="cast", source="my profile.yaml", **machine))
    assert finding.fix.command.endswith("--profile 'my profile.yaml'")


def test_fp8_blocks_are_one_word_of_both_engines(home: Home, machine: dict[str, Any]) -> None:
    """A block-scaled model runs on either; nothing is said of it on a GPU that has 8-bit floats."""
    model(home, quantization_config=FP8)
    assert ids(look(home, VLLM, only="quantization", **machine)) == []


def test_a_vllm_that_another_machine_may_have_is_not_missed(home: Home, machine: dict[str, Any]) -> None:
    """The console's container has none, and the engine's has: nothing is refused, and nothing is planned."""
    model(home)
    machine |= {"surroundings": None, "environ": {"INGOT_VLLM": None, "PATH": "/nowhere"}}
    report = look(home, VLLM, **machine)
    assert [finding for finding in report.findings if finding.severity is Severity.ERROR] == []
    assert report.plan is None


def test_surroundings_are_needed_to_speak_of_an_installation(home: Home, machine: dict[str, Any]) -> None:
    """The console that judges by another machine's hardware does not offer its own vLLM."""
    model(home, architectures=["MambaForCausalLM"])
    machine["surroundings"] = None
    assert one(look(home, only="architecture", **machine)).fix.patch is None
    assert isinstance(Surroundings.here(), Surroundings)
