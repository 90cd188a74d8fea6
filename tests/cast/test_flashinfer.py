"""FlashInfer's modules in a cast: which belong into it, how they get there, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.cast import flashinfer, nvcc
from kernels.cast.architectures import ARCHITECTURES, architecture_named
from kernels.cast.errors import CastError
from kernels.catalogue import PAGED_ATTENTION, RMS_NORM, SAMPLING
from kernels.context import CastSummary, Context
from kernels.named import load
from kernels.paged_attention.modules import HEAD_DIMS
from kernels.rms_norm.modules import NORM
from kernels.selection import BackendRefusedError, choose
from tests.cast import flashinfer_double as double

SM_90 = architecture_named("sm_90")
LIBRARIES = {"flashinfer": double.VERSION}


def model(**shape: Any) -> Context:
    fields: dict[str, Any] = {"dtype": "bfloat16", "head_dim": 128, "num_heads": 32, "num_kv_heads": 8,
                              "hidden_size": 4096}  # fmt: skip
    return Context("cuda", (9, 0), libraries=LIBRARIES, **fields | shape)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """FlashInfer's double, and a CUDA toolkit that could build for sm_90."""
    site = tmp_path / "site"
    double.install(site)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(site), os.environ.get("PYTHONPATH", ""))))
    toolkit = double.install_nvcc(tmp_path / "cuda", "13.0", headers=("cublasLt.h", "curand_kernel.h"))
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    return site


class TestPlan:
    def names(self, arch: int, *models: Context) -> set[str]:
        return {module.name for module in flashinfer.planned(arch, models)}

    @pytest.mark.usefixtures("installed")
    def test_a_module_written_for_sm_90_is_planned_there_alone(self):
        for architecture in ARCHITECTURES.values():
            found = self.names(architecture.number)
            assert "norm" in found
            assert any(name.endswith("_sm90") for name in found) == (architecture.number == 90)

    @pytest.mark.usefixtures("installed")
    def test_a_model_gets_what_its_shape_needs_and_no_more(self):
        wanted = self.names(90, model())
        (decode,) = (name for name in wanted if name.endswith("f16qk_False"))
        assert wanted == {"norm", decode, f"{decode}_sm90"}
        assert "dtype_q_bf16_dtype_kv_bf16" in decode
        assert "head_dim_qk_128" in decode
        assert "use_swa_False_use_logits_cap_False" in decode

    @pytest.mark.usefixtures("installed")
    @pytest.mark.parametrize(
        ("shape", "part", "count"),
        [
            ({"sliding_window": True}, "use_swa_True", 2),  # beside those of the layers without one
            ({"soft_cap": True}, "use_logits_cap_True", 2),
            ({"kv_cache_dtype": "float8_e4m3fn"}, "dtype_kv_e4m3", 1),  # one kernel serves prefill and decode
            ({"num_kv_heads": 32}, "batch_decode", 1),
            ({"dtype": "float16"}, "dtype_o_f16", 2),
            ({"head_dim": 96}, "batch", 0),
            ({"attention_sinks": True}, "batch", 0),
            ({"latent_attention": True}, "batch", 0),  # it has no keys and values to attend to
            ({"cuda_graphs": True}, "batch", 0),
        ],
    )
    def test_windows_caps_caches_and_groups_are_distinguished(self, shape, part, count):
        assert sum(part in name for name in self.names(90, model(**shape))) == count

    def test_the_head_sizes_that_selection_knows_are_those_that_are_planned(self):
        (backend,) = (backend for backend in PAGED_ATTENTION.of("native") if backend.name == "flashinfer")
        assert backend.head_dims == HEAD_DIMS

    def test_no_module_has_two_descriptions(self):
        planned = flashinfer.planned(90)
        assert len({module.name for module in planned}) == len(planned)


class TestCompiler:
    @pytest.mark.parametrize(
        ("arch", "release", "needed"),
        [("sm_90", "11.8", "12.0"), ("sm_100", "12.4", "12.8"), ("sm_121", "12.8", "12.9")],
    )
    def test_an_nvcc_too_old_for_the_architecture_is_named_with_the_version_needed(
        self, tmp_path, arch, release, needed
    ):
        home = double.install_nvcc(tmp_path, release)
        with pytest.raises(CastError, match=rf"{release}.* {arch} .*{needed}") as caught:
            nvcc.find(architecture_named(arch), {"CUDA_HOME": str(home)})
        assert caught.value.id == "cast-nvcc-too-old"
        assert "pip install" in caught.value.command

    def test_its_folder_is_what_it_says_even_through_a_script_on_the_path(self, tmp_path):
        home = double.install_nvcc(tmp_path / "cuda", "13.0")
        script = tmp_path / "bin" / "nvcc"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n')
        script.chmod(0o755)
        found = nvcc.find(SM_90, {"PATH": f"{script.parent}:/bin"})
        assert found == nvcc.Toolkit(home, (13, 0))

    def test_a_compiler_that_does_not_answer_is_reported(self, tmp_path):
        home = double.install_nvcc(tmp_path, "13.0")
        (home / "bin" / "nvcc").write_text("#!/bin/sh\necho hello\n")
        with pytest.raises(CastError, match="'hello'") as caught:
            nvcc.find(SM_90, {"CUDA_HOME": str(home)})
        assert caught.value.id == "cast-nvcc-unknown"

    def test_a_missing_header_is_named_with_the_package_that_brings_it(self, tmp_path, monkeypatch):
        monkeypatch.setattr(nvcc, "_packaged", lambda _folder: [])  # torch for CUDA brings it
        toolkit = nvcc.Toolkit(double.install_nvcc(tmp_path, "13.0"), (13, 0))
        with pytest.raises(CastError, match=r"cublasLt\.h") as caught:
            nvcc.include_folders(toolkit, ("cublasLt.h",))
        assert caught.value.command.startswith("pip install --no-deps nvidia-cublas==13.")


class TestBuild:
    def build(self, folder: Path) -> list[str]:
        moved: list[str] = []
        assert flashinfer.build(folder, SM_90, [NORM], 1, lambda module: moved.append(module.name)) == ("norm",)
        return moved

    def test_without_flashinfer_there_is_nothing_to_build(self):
        assert flashinfer.installed() is None

    @pytest.mark.usefixtures("installed")
    def test_what_is_there_is_taken_over_and_what_does_not_fit_is_built_again(self, tmp_path):
        cast = tmp_path / "cast"
        assert self.build(cast) == ["norm"]
        library = cast / "flashinfer" / "norm" / "norm.so"
        assert library.read_text() == "norm for 9.0a"
        record = json.loads((cast / "flashinfer" / "norm" / "build.json").read_bytes())
        assert (record["architecture"], record["flashinfer"], record["nvcc"]) == ("sm_90", double.VERSION, "13.0")
        assert not list((tmp_path / "scratch").iterdir()), "the workspace is removed when all is well"

        written = library.stat().st_mtime_ns
        (cast / "flashinfer" / "rope").mkdir()
        assert self.build(cast) == ["norm"]
        assert library.stat().st_mtime_ns == written
        assert [place.name for place in (cast / "flashinfer").iterdir()] == ["norm"], "what is not wanted goes"

        library.write_text("half of i")
        self.build(cast)
        assert library.read_text() == "norm for 9.0a"

    @pytest.mark.usefixtures("installed")
    @pytest.mark.parametrize(
        ("variable", "told"),
        [("DOUBLE_FAILS", r"norm\.cu\(7\): error: identifier"), ("DOUBLE_NAME", "FlashInfer calls norm 1")],
    )
    def test_a_build_that_fails_tells_what_the_compiler_said(self, tmp_path, monkeypatch, variable, told):
        monkeypatch.setenv(variable, "1")
        with pytest.raises(CastError, match=told) as caught:
            self.build(tmp_path / "cast")
        assert caught.value.id == "cast-module-failed"
        assert not list((tmp_path / "cast" / "flashinfer").iterdir())


class TestSeal:
    def sealed(self, cast: Path, code: str) -> subprocess.CompletedProcess[str]:
        program = (
            "from pathlib import Path\nfrom kernels import flashinfer\n"
            "from kernels.cast.architectures import architecture_named\n"
            f"flashinfer.seal(Path({str(cast)!r}), architecture_named('sm_90'))\n{code}"
        )
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    def test_modules_come_from_the_cast_and_nothing_is_written_elsewhere(self, tmp_path, installed, monkeypatch):
        cast = tmp_path / "cast"
        (cast / "flashinfer" / "norm").mkdir(parents=True)
        (cast / "flashinfer" / "norm" / "norm.so").write_text("of the cast")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        before = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts)
        done = self.sealed(
            cast,
            "import torch\nfrom kernels.rms_norm.flashinfer import rms_norm\nx = torch.ones(2, 4)\n"
            "rms_norm(x, x[0], 1e-6)\nnorm = flashinfer.library().norm\nprint(norm.loaded, norm.LANGUAGE)",
        )
        assert done.stdout == "['of the cast'] CUDA\n", done.stderr
        assert sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts) == before

    @pytest.mark.usefixtures("installed")
    def test_a_missing_module_is_not_compiled_but_named(self, tmp_path):
        done = self.sealed(
            tmp_path / "my casts",
            "import torch\nfrom kernels.rms_norm.flashinfer import rms_norm\n"
            "rms_norm(torch.ones(2, 4), torch.ones(4), 1e-6)",
        )
        assert "NotCast: rms_norm needs FlashInfer's module norm on sm_90" in done.stderr
        assert f"ingot cast --arch sm_90 --out '{tmp_path}/my casts'" in done.stderr


class TestSelection:
    def test_a_cast_without_the_modules_is_known_before_anything_is_read(self):
        needed = {module.name for backend in PAGED_ATTENTION.of("native") if backend.name == "flashinfer"
                  for module in load(backend.modules)(90, model())}  # fmt: skip
        whole = CastSummary(90, modules=frozenset(needed))
        assert choose(PAGED_ATTENTION, model(cast=whole), "flashinfer").backend.name == "flashinfer"
        part = CastSummary(90, modules=frozenset(sorted(needed)[1:]))
        with pytest.raises(BackendRefusedError, match=sorted(needed)[0]):
            choose(PAGED_ATTENTION, model(cast=part), "flashinfer")

    def test_sinks_graphs_and_an_absent_library_are_reasons_against_it(self):
        for shape, reason in (
            ({"attention_sinks": True}, "attention sinks"),
            ({"cuda_graphs": True}, "on the host"),
            ({"libraries": {}}, "library flashinfer"),
            ({"libraries": {"flashinfer": "0.5.0"}}, r"0\.6\.13"),
        ):
            with pytest.raises(BackendRefusedError, match=reason):
                choose(PAGED_ATTENTION, _with(model(), **shape), "flashinfer")
        assert choose(RMS_NORM, model(cuda_graphs=True), "flashinfer").backend.name == "flashinfer"

    def test_its_sampling_would_let_neighbours_change_a_request_s_tokens(self):
        """FlashInfer seeds a row's generator with the request's seed and the row's place in the batch; ours are seeded
        per request so that batching does not change a result."""
        with pytest.raises(BackendRefusedError) as caught:
            choose(SAMPLING, model(), "flashinfer")
        (verdict,) = (verdict for verdict in caught.value.verdicts if verdict.backend == "flashinfer")
        assert verdict.source.endswith("include/flashinfer/sampling.cuh")


def _with(context: Context, **changed: object) -> Context:
    return Context(**{name: getattr(context, name) for name in context.__dataclass_fields__} | changed)
