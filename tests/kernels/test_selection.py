"""Selection: the first backend that can, every verdict kept, and an explicit choice that cannot work is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from kernels.binding import BackendMissingError, bind
from kernels.catalogue import OPS
from kernels.context import CastSummary
from kernels.cpu.library import COMPILES, NAME, PRODUCTS
from kernels.named import load
from kernels.rms_norm.variants import variants as rms_norm_variants
from kernels.selection import (
    Backend,
    BackendRefusedError,
    Condition,
    Context,
    Fault,
    Op,
    Place,
    choose,
    chosen_names,
    explain,
    heaviest_names,
    names_by_place,
)
from kernels.site_key import site_key

HOPPER = Context("cuda", (9, 0), "bfloat16", head_dim=128, libraries={"flashinfer": "0.6.13"})
CPU = Context("cpu")
CRASH = Fault("crash", "crashes while graphs are captured", "example/engine#1", lambda c: c.cuda_graphs)
OP = Op(
    "moe",
    (
        Backend(
            "flashinfer", "m:f", devices=("cuda",), min_capability=(9, 0), libraries=("flashinfer",), faults=(CRASH,)
        ),
        Backend("triton", "m:t", devices=("cuda",), min_capability=(8, 0), max_capability=(12, 1), head_dims=(64, 128)),
        Backend("torch", "m:p"),
    ),
    setting="moe",
)


def test_auto_takes_the_first_backend_that_can_and_keeps_all_verdicts():
    choice = choose(OP, CPU)
    assert choice.backend.name == "torch"
    assert [(v.backend, v.usable) for v in choice.verdicts] == [
        ("flashinfer", False),
        ("triton", False),
        ("torch", True),
    ]
    assert CPU.place in choice.verdicts[0].reason
    assert choose(OP, HOPPER).backend.name == "flashinfer"


def test_a_known_fault_rules_a_backend_out_where_it_applies_and_names_its_source():
    choice = choose(OP, replace(HOPPER, cuda_graphs=True))
    assert choice.backend.name == "triton"
    assert (choice.verdicts[0].reason, choice.verdicts[0].source) == (CRASH.reason, CRASH.source)


@pytest.mark.parametrize(
    ("context", "backend", "values"),
    [
        (Context("cuda", (8, 0)), "flashinfer", ("sm_90", "sm_80")),
        (Context("cuda", (13, 0), head_dim=64), "triton", ("sm_121", "sm_130")),
        (Context("cuda", (9, 0), head_dim=96), "triton", ("96", "64", "128")),
        (Context("cuda", (9, 0)), "flashinfer", ("flashinfer",)),
        (CPU, "deepgemm", ("'deepgemm'", "auto", "flashinfer", "triton", "torch")),
    ],
)
def test_an_explicit_choice_that_cannot_work_is_refused_with_the_reason(context, backend, values):
    with pytest.raises(BackendRefusedError) as refused:
        choose(OP, context, backend)
    assert (refused.value.op, refused.value.requested) == (OP, backend)
    assert all(value in str(refused.value) for value in values)
    assert len(refused.value.verdicts) == 3


def test_auto_with_no_usable_backend_gives_every_reason():
    only_gpu = Op("moe", OP.backends[:2])
    with pytest.raises(BackendRefusedError) as refused:
        choose(only_gpu, CPU)
    assert all(verdict.reason in str(refused.value) for verdict in refused.value.verdicts)


def objection(backend: Backend, context: Context) -> str:
    return next((found.reason for found in backend.objections(context)), "")


@pytest.mark.parametrize(
    ("demands", "context", "values"),
    [
        ({"conditions": (Condition("hidden_size", multiple_of=16, at_most=16384),)}, {"hidden_size": 2050},
         ("hidden size", "16", "16,384", "2,050")),
        ({"conditions": (Condition("hidden_size", at_most=16384),)}, {"hidden_size": 18432},
         ("hidden size", "16,384", "18,432")),
        ({"conditions": (Condition("num_experts", at_least=2),)}, {"num_experts": 1},
         ("number of experts", "2", "1")),
        ({"conditions": (Condition("activation", one_of=("silu", "gelu")),)}, {"activation": "relu2"},
         ("activation", "silu", "gelu", "relu2")),
        ({"conditions": (Condition("fp8_blocks", one_of=(None,), says="is for 16 bits"),)}, {"fp8_blocks": (128, 128)},
         ("is for 16 bits",)),
        ({"kv_cache_dtypes": ("bfloat16",)}, {"kv_cache_dtype": "float8_e4m3fn"},
         ("float8_e4m3fn", "bfloat16")),
        ({"lacks": ("attention_sinks",)}, {"attention_sinks": True}, ("attention sinks",)),
        ({"libraries": ("flashinfer>=0.6.14",)}, {},
         ("flashinfer", "0.6.14", "0.6.13")),
        ({"libraries": ("deep_gemm>=2",)}, {}, ("deep_gemm",)),
    ],
)  # fmt: skip
def test_an_objection_names_the_limit_and_the_value(demands, context, values):
    backend = Backend("triton", "m:t", **demands)
    reason = objection(backend, replace(HOPPER, **context))
    assert all(value in reason for value in values)
    fitting: dict[str, Any] = {
        "hidden_size": 4096,
        "num_experts": 8,
        "fp8_blocks": None,
        "libraries": {"flashinfer": "0.6.14"},
    }
    if "deep_gemm" not in values:
        assert objection(backend, replace(HOPPER, **fitting)) == ""


@pytest.mark.parametrize("version", ["0.6.13", "0.6.13.post1", "0.6.13+cu130", "0.7.2.post1", "1.0"])
def test_versions_are_compared_as_numbers(version):
    backend = Backend("flashinfer", "m:f", libraries=("flashinfer>=0.6.13",))
    assert objection(backend, replace(HOPPER, libraries={"flashinfer": version})) == ""
    assert objection(backend, replace(HOPPER, libraries={"flashinfer": "0.6.9"})) != ""


@pytest.mark.parametrize("library", [NAME, PRODUCTS])
def test_kernels_that_are_not_compiled_come_with_the_command_that_compiles_them(library):
    backend = Backend("cpp", "m:f", libraries=(library,))
    assert COMPILES in objection(backend, CPU)
    assert objection(backend, replace(CPU, libraries={library: "avx2"})) == ""


def test_all_objections_are_kept_and_the_first_decides():
    faulty = Backend("x", "m:x", head_dims=(64,), libraries=("flashinfer>=1",), faults=(CRASH,))
    [verdict] = explain([Op("op", (faulty,))], replace(HOPPER, cuda_graphs=True))[0].verdicts
    assert [found.source for found in verdict.objections] == [None, None, "example/engine#1"]
    assert verdict.reason == verdict.objections[0].reason
    assert "128" in verdict.reason


def test_on_another_device_nothing_else_is_worth_saying():
    backend = Backend("x", "m:x", devices=("cuda",), head_dims=(32,), libraries=("flashinfer",))
    assert len(list(backend.objections(CPU))) == 1


def test_a_sealed_engine_gets_what_its_cast_holds():
    """The cast's architecture, then each variant that this model may launch; one that is missing is named."""
    backend = next(backend for op in OPS if op.name == "rms_norm" for backend in op.backends)
    model = replace(HOPPER, hidden_size=4096, qk_norm="head")
    needed = frozenset(variant.name for variant in rms_norm_variants(90, model))
    assert frozenset(backend.needs_of_a_cast(model).variants) == needed
    assert objection(backend, replace(model, cast=CastSummary(90, needed))) == ""
    assert "sm_120" in objection(backend, replace(model, cast=CastSummary(120, needed)))
    missing = sorted(needed)[0]
    assert missing in objection(backend, replace(model, cast=CastSummary(90, needed - {missing})))


@pytest.mark.parametrize("capability", [(8, 7), (11, 0), (13, 0), (7, 5)])
def test_on_a_gpu_that_no_kernel_is_written_for_torch_serves(capability):
    """Jetson's sm_87 and sm_110 lie between the architectures that have kernels; what comes later is not guessed at."""
    model = replace(HOPPER, capability=capability, hidden_size=4096, vocab_size=1000, rotary_dim=128)
    explained = explain(OPS, model)
    assert {explanation.chosen.name for explanation in explained if explanation.chosen} == {"torch"}
    assert all(explanation.chosen for explanation in explained)


def test_each_engine_has_its_own_backends():
    """A backend of the other engine is unknown, and an op that an engine decides for itself is not chosen."""
    inside = Backend("flash-attn", engine="vllm")
    op, ours = Op("attention", (Backend("torch", "m:p"), inside)), Op("norm", (Backend("torch", "m:p"),))
    assert chosen_names(explain([op, ours], HOPPER)) == {"attention": "torch", "norm": "torch"}
    vllm = replace(HOPPER, engine="vllm")
    assert chosen_names(explain([op, ours], vllm)) == {"attention": "flash-attn"}
    with pytest.raises(BackendRefusedError) as unknown:
        choose(op, vllm, "torch")
    assert [verdict.backend for verdict in unknown.value.verdicts] == ["flash-attn"]
    assert explain([op], replace(CPU, engine="vllm", left_to_engine=True)) == ()


def test_an_explanation_tells_what_is_refused_beside_what_is_not():
    good, bad = Op("norm", (Backend("torch", "m:p"),)), Op("moe", OP.backends[:2], setting="moe")
    served, refused = explain([good, bad], CPU, {"moe": "triton"})
    assert served.chosen is not None
    assert served.refusal is None
    assert refused.chosen is None
    assert refused.refusal is not None
    assert (refused.refusal.op, refused.refusal.requested) == (bad, "triton")


SMALL, LARGE = replace(HOPPER, libraries={}), replace(HOPPER, libraries={}, head_dim=512)
PLACES = (Place("moe", "moe@64", SMALL), Place("moe", "moe@512", LARGE), Place("moe", "moe@128", SMALL))


def test_each_place_gets_what_can_run_there():
    """The op's own is what most of them get; reasons and refusals are the place's."""
    (found,) = explain([OP], LARGE, None, PLACES)
    assert names_by_place([found]) == {"moe@64": "triton", "moe@512": "torch", "moe@128": "triton"}
    assert chosen_names([found]) == {"moe": "triton"}
    assert [backend.name for backend in found.used] == ["triton", "torch"]
    assert heaviest_names([found]) == {"moe": "torch"}
    at_512 = next(place for place in found.places if place.key == "moe@512")
    assert [verdict.backend for verdict in at_512.verdicts if not verdict.usable] == ["flashinfer", "triton"]


def test_a_layout_of_its_own_outweighs_what_torch_keeps():
    _, triton, torch = OP.backends
    op = replace(OP, backends=(replace(triton, prepare="m:p"), torch))
    (found,) = explain([op], LARGE, None, PLACES)
    assert [backend.name for backend in found.used] == ["triton", "torch"]
    assert heaviest_names([found]) == {"moe": "triton"}


def test_a_place_is_asked_for_by_its_name_before_its_op():
    (found,) = explain([OP], SMALL, {"moe": "triton"}, PLACES[:1] + PLACES[2:], {"moe@128": "torch"})
    assert names_by_place([found]) == {"moe@64": "triton", "moe@128": "torch"}
    assert [place.requested for place in found.places] == ["triton", "torch"]


def test_a_place_where_nothing_can_run_refuses_the_op_by_its_name():
    (found,) = explain([OP], SMALL, {"moe": "triton"}, PLACES)
    assert found.chosen is None
    assert found.used == ()
    assert found.refusal is not None
    assert found.refusal.place == "moe@512"
    assert "moe@512" in str(found.refusal)
    (free,) = explain([OP], SMALL, {"moe": "triton"}, PLACES, {"moe@512": "auto"})
    assert names_by_place([free])["moe@512"] == "torch"


def test_what_was_chosen_for_a_place_is_bound_there():
    kernels = bind({"linear": "onednn"}, places={"linear@8x64": "torch", "linear@64x64": "onednn"})
    reference, onednn = load("kernels.linear.reference:linear"), load("kernels.linear.onednn:linear")
    assert kernels.at("linear", 8, 64).call is reference
    assert kernels.at("linear", 64, 64) == (onednn, load("kernels.linear.onednn:prepare"))
    with pytest.raises(KeyError, match="linear@8x64:float32"):
        kernels.at("linear", 8, 64, dtype="float32")
    unknown = bind({"linear": "onednn"})
    assert unknown.at("linear", 8, 64).call is unknown.linear
    assert site_key("linear", 8, 64, dtype="float32") == "linear@8x64:float32"


def test_every_backend_of_the_catalogue_says_what_it_is():
    for op in OPS:
        for backend in op.backends:
            assert backend.function or backend.engine == "vllm" or backend.faults, (op.name, backend.name)
            known = {setting.name for setting in fields(Context)}
            known |= {"widest_norm", "fp8_expert_size", "gated_width", "mxfp4_expert_sizes", "latent_shape"}
            assert {condition.field for condition in backend.conditions} | set(backend.lacks) <= known
        assert op.setting is None or op.absent, op.name
        for engine in ("native", "vllm"):
            names = [backend.name for backend in op.of(engine)]
            assert len(set(names)) == len(names), op.name


def test_the_catalogue_serves_the_cpu_in_every_dtype_and_the_profile_key_reaches_its_op():
    for dtype in ("float32", "bfloat16", "float16"):
        chosen = chosen_names(explain(OPS, Context("cpu", dtype=dtype)))
        assert chosen.pop("linear") == ("torch" if dtype == "float16" else "onednn")
        assert set(chosen.values()) == {"torch"}
    refused = {found.op.name: found for found in explain(OPS, CPU, {"attention": "nonsense"}) if found.refusal}
    assert list(refused) == ["paged_attention"]
    assert refused["paged_attention"].requested == "nonsense"


def test_selection_and_catalogue_import_no_torch():
    code = "import sys, kernels.catalogue, kernels.libraries; assert not {'torch', 'triton'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_was_chosen_is_bound_and_nothing_else() -> None:
    """By the op's name; an op that the model does not need has none."""
    chosen = chosen_names(explain(OPS, CPU))
    assert chosen["rms_norm"] == "torch"
    assert "fused_moe" not in chosen
    kernels = bind(chosen | {"linear": "torch"})
    assert kernels.linear is load("kernels.linear.reference:linear")
    with pytest.raises(AssertionError):
        kernels.fused_moe()


@pytest.mark.parametrize(
    ("backends", "libraries", "reason"),
    [
        ({"rms_norm": "cuda"}, {}, "triton, flashinfer, cpp, torch"),
        ({"norm": "torch"}, {}, "norm"),
        ({"paged_attention": "flash-attn"}, {}, "triton, flashinfer, cpp, torch"),  # vLLM's
        ({"rms_norm": "flashinfer"}, {}, "library flashinfer"),
        ({"rms_norm": "flashinfer"}, {"flashinfer": "0.1"}, r"0\.6\.13"),
        ({"rms_norm": "flashinfer"}, {"flashinfer": "9.9"}, "cannot be imported"),
    ],
)
def test_a_backend_that_is_not_there_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, backends: dict[str, str], libraries: dict[str, str], reason: str
) -> None:
    """The core's machine is not the one that was planned for: nothing else is taken instead."""
    monkeypatch.setitem(sys.modules, "kernels.rms_norm.flashinfer", None)  # as where its library is half there
    with pytest.raises(BackendMissingError, match=reason):
        bind(backends, libraries)
