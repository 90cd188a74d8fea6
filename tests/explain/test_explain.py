"""`ingot explain`: the table for any known GPU, without one; what is refused, and what a cast would need."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from rich.console import Console

from appliance.explain.explain_command import explain
from appliance.explain.printing import show
from appliance.explain.report import machine_with, report
from appliance.explain.words import layers_label, sentences, source_label
from appliance.hardware import Host, Inventory
from appliance.hardware.engine_machine import Machine
from appliance.hardware.known import KNOWN_GPUS, known_gpu
from appliance.home import Home
from appliance.profile.active import ActiveProfile, write_active
from appliance.profile.document import load, write
from kernels.cast.manifest import CastVariant, Manifest, Versions
from kernels.cast.manifest import write as write_manifest
from kernels.cast.setting import cast_summary
from kernels.catalogue import OPS
from kernels.selection import explain as explain_ops
from tests.tiny import FAMILIES, aligned, write_checkpoint
from tests.tiny_deepseek_v4 import write_deepseek_v4

GIB = 1 << 30
MACHINE = Machine(
    inventory=Inventory(
        gpus=(),
        driver_version=None,
        cuda_version=None,
        host=Host(cores=4, memory_bytes=16 * GIB, memory_available_bytes=16 * GIB),
        problem=None,
    ),
    libraries={"flashinfer": "0.6.13", "deep_gemm": "2.1.1"},
)
QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "num_experts": 512,
    "num_experts_per_tok": 10, "linear_key_head_dim": 128, "vocab_size": 151936, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V32 = {
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "hidden_size": 7168,
    "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_group": 8, "index_topk": 2048, "vocab_size": 129280, "dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip


@pytest.fixture
def tiny(home: Home) -> dict[str, Any]:
    write_checkpoint(home.models / "tiny", dtype="bfloat16")
    return {"name": "chat", "model": {"path": "tiny"}}


def foreign(home: Home, config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A profile of a model that only vLLM runs."""
    folder = home.models / "foreign"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return {"name": "big", "model": {"path": "foreign"}, "engine": "vllm", **changes}


def ask(home: Home, document: dict[str, Any] | None, *arguments: str) -> Result:
    if document is not None:
        source = home.root / "asked.yaml"
        source.write_text(write(document))
        arguments = ("--profile", str(source), *arguments)
    environment = {"INGOT_HOME": str(home.root), "INGOT_MODELS": str(home.models), "COLUMNS": "80"}
    return CliRunner().invoke(explain, arguments, env=environment)


def rows(result: Result) -> dict[str, Any]:
    return {op["op"]: op for op in json.loads(result.output)["ops"]}


def test_every_known_gpu_gets_an_answer(home: Home, tiny: dict[str, Any]) -> None:
    """Each op has one backend, and each other backend a reason; nothing but Ampere and newer has compiled kernels."""
    for gpu in KNOWN_GPUS:
        found = report(load(tiny), home, machine=MACHINE, gpu=gpu)
        assert found.hypothetical
        assert not found.refused
        assert found.device.gpu is not None
        assert found.device.gpu.name == gpu.name
        assert found.context.capability == gpu.compute_capability
        assert all(other.reason for row in found.rows for other in row.others)
        assert (found.kernels > 0) is (gpu.compute_capability >= (8, 0)), gpu.name
        assert found.can_be_cast is (gpu.compute_capability >= (8, 0)), gpu.name


@pytest.mark.parametrize("sizes", [{}, aligned("deepseek_v3")], ids=["tiny", "aligned"])
def test_latent_attention_has_ops_of_its_own(home: Home, tiny: dict[str, Any], sizes: dict[str, Any]) -> None:
    """Of any size on any GPU; those of attention over keys and values are not asked for."""
    write_checkpoint(home.models / "tiny", "deepseek_v3", dtype="bfloat16", **sizes)
    for gpu in (None, *KNOWN_GPUS):
        found = report(load(tiny), home, machine=MACHINE, gpu=gpu)
        assert not found.refused
        ops = {row.op for row in found.rows}
        assert {"latent_cache", "mla_attention", "moe_routing", "fused_moe"} <= ops
        assert not {"rotary_cache", "paged_attention"} & ops
    assert rows(ask(home, tiny, "--gpu", "H200", "--json"))["mla_attention"]["chosen"]


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa"])
def test_sparse_attention_has_kernels_on_every_gpu(home: Home, tiny: dict[str, Any], family: str) -> None:
    """From sm_80 on: what chooses tokens, and what attends to them; short prefills attend to all."""
    write_checkpoint(home.models / "tiny", family, dtype="bfloat16", **aligned(family))
    for gpu in KNOWN_GPUS:
        if gpu.compute_capability >= (8, 0):
            found = report(load(tiny), home, machine=MACHINE, gpu=gpu)
            assert not found.refused
            chosen = {row.op: row.chosen for row in found.rows}
            sparse = ("latent_cache", "mla_attention", "index_cache", "indexer", "sparse_mla")
            assert {op: chosen[op] for op in sparse} == dict.fromkeys(sparse, "triton"), gpu.name


def test_the_command_prints_a_table_for_a_gpu_that_is_not_here(home: Home, tiny: dict[str, Any]) -> None:
    result = ask(home, tiny, "--gpu", "RTX PRO 6000")
    assert result.exit_code == 0, result.output
    assert "on RTX PRO 6000 Blackwell (sm_120, 96.0 GiB)" in " ".join(result.output.split())
    assert "torch could run; triton" in result.output
    assert "cast for sm_120" in result.output


@pytest.mark.parametrize("family", FAMILIES)
def test_every_op_has_the_places_where_it_is_called(home: Home, tiny: dict[str, Any], family: str) -> None:
    """For people, programs, and each of two ranks."""
    write_checkpoint(home.models / "tiny", family, dtype="bfloat16", num_hidden_layers=3, **aligned(family))
    for ranks in (1, 2):
        document = tiny | {"tensor-parallel-size": ranks}
        found = rows(ask(home, document, "--gpu", "H100", "--json"))
        assert {op for op, row in found.items() if not row["sites"]} == set()
        layers = {layer for row in found.values() for site in row["sites"] for layer in site["layers"]}
        assert layers == {0, 1, 2}
    (embedding,) = found["embedding"]["sites"]
    assert embedding == {
        "site": "embedding@256x192", "shape": "256 x 192", "dtype": "bfloat16", "layers": [], "requested": "auto",
        "chosen": "triton", "why": None,
    }  # fmt: skip
    printed = " ".join(ask(home, tiny, "--gpu", "H100").output.split())
    assert "embedding@512x192 512 x 192 bfloat16 once a step triton" in printed


def test_every_op_of_deepseek_v4_has_its_places(home: Home, tiny: dict[str, Any]) -> None:
    """Each of two ranks has half of the heads, and of their groups."""
    write_deepseek_v4(home.models / "v4", torch_dtype="bfloat16")
    for ranks, shape in ((1, "2 x 16 x 64"), (2, "1 x 16 x 64")):
        document = tiny | {"model": {"path": "v4"}, "tensor-parallel-size": ranks}
        found = rows(ask(home, document, "--gpu", "H100", "--json"))
        assert {op for op, row in found.items() if not row["sites"]} == set()
        assert [site["shape"] for site in found["grouped_linear"]["sites"]] == [shape]


def test_a_site_that_gets_another_backend_says_why(home: Home, tiny: dict[str, Any]) -> None:
    """By itself, as what an indexer multiplies by in float32, or because the profile asks for it; for people and for
    programs."""
    write_checkpoint(home.models / "tiny", "deepseek_v32", dtype="bfloat16", **aligned("deepseek_v32"))
    document = tiny | {"site-backends": {"gated_activation@256": "torch"}}
    found = rows(ask(home, document, "--gpu", "H100", "--json"))
    assert found["linear"]["chosen"] == found["gated_activation"]["chosen"] == "triton"
    sites = {site["site"]: site for row in found.values() for site in row["sites"]}
    heads = sites["linear@64x192:float32"]
    assert (heads["chosen"], heads["requested"]) == ("torch", "auto")
    assert heads["why"].startswith("triton does not support float32")
    wished = sites["gated_activation@256"]
    assert (wished["chosen"], wished["requested"]) == ("torch", "torch")
    assert {site["chosen"] for name, site in sites.items() if name.startswith("gated_activation@")} == {
        "torch",
        "triton",
    }
    printed = " ".join(ask(home, document, "--gpu", "H100").output.split())
    assert "linear@64x192:float32 gets torch: triton does not support float32" in printed


def test_a_layer_that_drafts_has_its_places(home: Home, tiny: dict[str, Any]) -> None:
    write_checkpoint(home.models / "tiny", "deepseek_v3", dtype="bfloat16", num_nextn_predict_layers=1)
    for method, layers in (("none", [0, 1, 2]), ("mtp", [0, 1, 2, 3])):
        found = rows(ask(home, tiny | {"speculative-config": {"method": method}}, "--gpu", "H100", "--json"))
        assert [site["layers"] for site in found["mla_attention"]["sites"]] == [layers]


@pytest.mark.parametrize(
    ("layers", "label"), [((), "once a step"), ((0, 1, 2, 3), "all"), ((1,), "1"), ((0, 1, 3), "0-1, 3")]
)
def test_layers_are_said_in_runs(layers: tuple[int, ...], label: str) -> None:
    assert layers_label(layers, 4) == label


def test_without_a_profile_it_is_the_active_one_by_default_and_by_name(home: Home, tiny: dict[str, Any]) -> None:
    home.create()
    write_active(home, ActiveProfile(launch=None, revision="chat r1", document=tiny))
    assert re.match(r"chat: LlamaForCausalLM in (bfloat16|float32) on the CPU", ask(home, None).output)
    assert ask(home, None, "--profile", "chat").exit_code == 0


@pytest.mark.parametrize("width", [80, 120, 40])
def test_the_table_keeps_within_the_terminal(home: Home, width: int) -> None:
    """And says it all: no word is cut off."""
    document = foreign(home, QWEN3_NEXT, **{"tensor-parallel-size": 4})
    found = report(load(document), home, machine=MACHINE, gpu=known_gpu("H100"))
    out = io.StringIO()
    show(found, console=Console(file=out, width=width, highlight=False))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in out.getvalue()
    if width >= 80:
        words = " ".join(out.getvalue().split())
        assert "(vllm-project/vllm#39288)" in words
        assert "--gdn-prefill-backend triton" in words


def test_programs_get_the_same_as_json(home: Home) -> None:
    """With every source whole, and what tells vLLM of the choice."""
    document = foreign(home, QWEN3_NEXT, **{"tensor-parallel-size": 8})
    asked = ("--gpu", "H100", "--json", "--with", "flashinfer=0.6.13")
    result = ask(home, document, *asked)
    moe = rows(result)["fused_moe"]
    assert (moe["chosen"], moe["vllm"]["arguments"]) == ("triton", {"moe-backend": "triton"})
    [cutlass] = [other for other in moe["others"] if other["backend"] == "flashinfer-cutlass"]
    assert cutlass["source"] == "https://github.com/vllm-project/vllm/issues/39288"
    assert "enforce-eager" in cutlass["remedy"]
    assert rows(result)["deep_gemm_warmup"]["vllm"]["environment"]["VLLM_DEEP_GEMM_WARMUP"] == "skip"


def test_a_model_that_the_native_engine_does_not_run_is_explained_for_vllm(home: Home) -> None:
    """DeepSeek V3.2: sparse latent attention, FP8, groups of experts. On an A100 nothing serves its attention: 1."""
    document = foreign(home, DEEPSEEK_V32)
    served = ask(home, document, "--gpu", "H200", "--json", "--with", "deep_gemm=2.1.1")
    assert served.exit_code == 0
    assert {name: row["chosen"] for name, row in rows(served).items()} == {
        "sparse_mla": "flashmla", "fp8_linear": "deepgemm", "moe_routing": "grouped", "fused_moe": "deepgemm",
        "deep_gemm_warmup": "run",
    }  # fmt: skip
    refused = ask(home, document, "--gpu", "A100 80GB")
    assert refused.exit_code == 1
    assert "Refused: Sparse MLA has no backend on sm_80" in " ".join(refused.output.split())


def test_an_explicit_choice_that_cannot_work_is_refused(home: Home, tiny: dict[str, Any]) -> None:
    result = ask(home, {**tiny, "backends": {"attention": "flashinfer"}}, "--gpu", "T4", "--json")
    assert result.exit_code == 1
    attention = rows(result)["paged_attention"]
    assert (attention["requested"], attention["chosen"]) == ("flashinfer", None)
    assert all(name in attention["refusal"] for name in ("sm_80", "sm_75"))


def test_all_says_everything_that_stands_against_a_backend(home: Home) -> None:
    document = foreign(home, QWEN3_NEXT, **{"tensor-parallel-size": 4})
    brief, whole = (" ".join(ask(home, document, "--gpu", "H100", *more).output.split()) for more in ((), ("--all",)))
    assert "flashinfer needs the library flashinfer" in brief
    assert "#41865" not in brief
    assert "#41865" in whole


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--gpu", "RTX 6000"), 2, "may be RTX PRO 6000 Blackwell or RTX 6000 Ada"),
        (("--gpu", "Voodoo 2"), 2, "'Voodoo 2'. Known: RTX PRO 6000 Blackwell, "),
        (("--with", "cudnn=9"), 2, "triton, flashinfer"),
        (("--with", "flashinfer"), 2, "LIBRARY=VERSION"),
        (("--profile", "nobody"), 2, "no profile nobody"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(
    home: Home, tiny: dict[str, Any], arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = ask(home, None if "--profile" in arguments else tiny, *arguments)
    assert result.exit_code == code
    assert words in " ".join(result.output.split())


def test_a_missing_model_is_reported_with_what_to_do(home: Home, tiny: dict[str, Any]) -> None:
    result = ask(home, {**tiny, "model": {"path": "tinny"}}, "--gpu", "H100")
    assert result.exit_code == 1
    assert "tinny" in result.output
    (home.models / "tiny" / "config.json").unlink()
    result = ask(home, tiny, "--gpu", "H100")
    assert result.exit_code == 1
    assert "tiny has no config.json" in result.output


def test_a_device_that_is_not_here_is_no_matter_for_another_gpu(home: Home, tiny: dict[str, Any]) -> None:
    document = {**tiny, "device": "GPU-12345678-1234-1234-1234-123456789abc"}
    assert ask(home, document, "--gpu", "H100").exit_code == 0
    result = ask(home, document)
    assert result.exit_code == 1
    assert "GPU-12345678-1234-1234-1234-123456789abc" in result.output


def test_a_sealed_engine_is_explained_by_its_cast(home: Home, tiny: dict[str, Any], tmp_path: Path) -> None:
    """A cast for another architecture serves nothing here; what it holds all of is chosen. Another GPU is judged as if
    there were no cast."""
    machine = Machine(inventory=machine_with(known_gpu("H100"), MACHINE.inventory.host))
    free = report(load(tiny), home, machine=machine)
    explained = explain_ops(OPS, free.context)
    held = sorted({name for explanation in explained for name in explanation.needs.variants})
    for architecture, chosen in (("sm_90", "triton"), ("sm_120", "torch")):
        folder = tmp_path / architecture
        folder.mkdir()
        versions = Versions(ingot="0", triton="3", triton_build="", python="", ptxas="", libc="")
        variants = tuple(CastVariant(op="", name=name, keys=(), shared=0) for name in held)
        write_manifest(
            Manifest(architecture=architecture, versions=versions, variants=variants, files=(), built=0.0, seconds=0.0),
            folder,
        )
        sealed = replace(machine, cast=cast_summary({"INGOT_CAST": str(folder)}))
        found = report(load(tiny), home, machine=sealed)
        norm = next(row for row in found.rows if row.op == "rms_norm")
        assert norm.chosen == chosen
        if chosen == "torch":
            assert all(name in norm.others[0].reason for name in ("sm_120", "sm_90"))
        else:
            assert f"{free.kernels:,} kernels" in " ".join(sentences(found))
    asked = report(load(tiny), home, machine=sealed, gpu=known_gpu("B200"))
    assert asked.context.cast is None


def test_the_known_gpus_are_listed() -> None:
    lines = CliRunner().invoke(explain, ["--gpus"]).output.splitlines()
    assert len(lines) == len(KNOWN_GPUS)
    assert lines[0].split() == ["RTX", "PRO", "6000", "Blackwell", "sm_120", "96", "GiB"]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**QWEN3_NEXT, "hidden_size": "many"}, "hidden_size"),
        ({**DEEPSEEK_V32, "quantization_config": {"quant_method": "fp8", "weight_block_size": 3}}, "weight_block_size"),
        ({"architectures": []}, "architecture"),
    ],
)
def test_a_config_that_makes_no_sense_is_named(home: Home, config: dict[str, Any], field: str) -> None:
    result = ask(home, foreign(home, config), "--gpu", "H100")
    assert result.exit_code == 1
    assert field in result.output


def test_a_model_with_pictures_is_judged_by_its_decoder(home: Home) -> None:
    """Its shape lies under text_config."""
    document = foreign(home, {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "text_config": QWEN3_NEXT})
    assert "delta_rule" in rows(ask(home, document, "--gpu", "H100", "--json"))


def test_what_vllm_decides_by_the_quantisation_is_left_to_it(home: Home) -> None:
    """GPT-OSS: experts in MXFP4, and attention sinks, which before sm_90 only Triton has."""
    config = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "head_dim": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 4,
        "vocab_size": 201088, "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    found = rows(ask(home, foreign(home, config), "--gpu", "A100", "--json"))
    assert {name: row["chosen"] for name, row in found.items()} == {
        "paged_attention": "triton", "moe_routing": "top-k", "deep_gemm_warmup": "skip",
    }  # fmt: skip


def test_sources_are_short_in_a_table() -> None:
    assert source_label("https://github.com/vllm-project/vllm/pull/34673") == "vllm-project/vllm#34673"
    assert source_label("https://github.com/vllm-project/vllm/blob/v0.32.0/x.py") == "vllm-project/vllm"
    assert source_label("https://docs.vllm.ai/en/v0.25.0/design/") == "docs.vllm.ai"


def test_it_is_told_how_to_end(tmp_path: Path) -> None:
    assert "Exits with 1 when an op is refused." in CliRunner().invoke(explain, ["--help"]).output


def test_a_processor_without_the_instructions_of_a_backend_is_reported(tiny: dict[str, Any], home: Home) -> None:
    """oneDNN takes bfloat16 on some processors alone; elsewhere the model runs with plain torch."""
    for features, chosen in ((("avx512bw", "avx512dq", "avx512vl"), "onednn"), ((), "torch")):
        host = msgspec.structs.replace(MACHINE.inventory.host, cpu_features=features)
        machine = Machine(inventory=msgspec.structs.replace(MACHINE.inventory, host=host))
        found = report(load(tiny | {"dtype": "bfloat16"}), home, machine=machine)
        (row,) = [row for row in found.rows if row.op == "linear"]
        assert (row.chosen, row.refusal) == (chosen, "")
        objected = [other.name for other in row.others if other.objections]
        assert ("onednn" in objected) == (chosen == "torch")
        assert set(objected) <= {"onednn", "triton", "cpp"}
