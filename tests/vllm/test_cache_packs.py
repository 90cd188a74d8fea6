"""Packs of compiled code: what they depend on, which one fits a launch, and that nothing of a bad one is used."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from msgspec import structs

from appliance.caches.collect import make_pack
from appliance.hardware import Inventory
from appliance.home import Home
from appliance.packages import Packages
from appliance.preflight import PreflightContext, run
from appliance.preflight.surroundings import Surroundings
from appliance.vllm.cache_packs import pack, store
from appliance.vllm.cache_packs.facts import COMPILERS, Facts, differences, facts_of
from appliance.vllm.cache_packs.pack import MANIFEST, OBJECTS, PackError, PackFolder, encode, is_path, read_pack, verify
from appliance.vllm.cache_packs.store import folders, judge
from appliance.vllm.cache_packs.working_copy import clear_orphans, place_of, working_copy
from appliance.vllm.plan import VllmPlan
from appliance.vllm.source import VllmSource, vllm_source
from tests.vllm.compiled import COMPILED, FACTS
from tests.vllm.full_disk import no_file_over
from tests.vllm.stand_in import install
from tests.vllm.test_vllm_command import CPU, gpus, planned


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("vllm"), "0.32.0+cpu")


def facts(
    home: Home,
    program: Path,
    changes: dict[str, Any] | None = None,
    inventory: Inventory = CPU,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Facts:
    plan, errors = planned(home, program, changes, inventory)
    assert plan is not None, errors
    source = vllm_source(plan.program)
    assert source is not None
    found = facts_of(plan, source, inventory, environ)
    assert found is not None
    return found


def packed(found: PackFolder) -> dict[str, bytes]:
    """What a pack's files contain, by their paths."""
    return {file.path: found.object(file).read_bytes() for file in found.pack.files}


def object_of(found: PackFolder, path: str) -> Path:
    return next(found.object(file) for file in found.pack.files if file.path == path)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ----------------------------------------------------------------------------------------------------------------------
# What compiled code depends on
# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [
    {"served-model-name": "other"}, {"gpu-memory-utilization": 0.5}, {"sampling-defaults.temperature": 0.5},
    {"prefix-caching": False}, {"vllm.environment.NCCL_DEBUG": "WARN"}, {"vllm.extra-args.tool-call-parser": "hermes"},
    {"vllm.environment.MAX_JOBS": "4"}, {"vllm.environment.LANG": "C.UTF-8"},
])  # fmt: skip
def test_what_no_compiler_sees_makes_no_difference(home: Home, program: Path, changes: dict[str, Any]) -> None:
    assert facts(home, program, changes) == facts(home, program)


@pytest.mark.parametrize("changes", [
    {"max-model-len": 128}, {"max-num-seqs": 7}, {"dtype": "float16"}, {"enforce-eager": True},
    {"vllm.environment.VLLM_USE_DEEP_GEMM": "0"}, {"vllm.extra-args.compilation-config": '{"mode": 3}'},
])  # fmt: skip
def test_what_reaches_a_compiler_does(home: Home, program: Path, changes: dict[str, Any]) -> None:
    assert differences(facts(home, program), facts(home, program, changes))


def test_secrets_stay_out_and_a_long_value_can_be_read_again(home: Home, program: Path) -> None:
    """Facts go into packs, which go to other sites; and each value is of a length that a pack may have."""
    secret = facts(home, program, {"vllm.extra-args.hf-overrides": '{"api_key": "hunter2hunter2"}'})
    assert "hunter2" not in secret.settings["hf-overrides"]
    long, longer = (facts(home, program, environ={"CFLAGS": "-g " * count}) for count in (4000, 4001))
    assert msgspec.json.decode(msgspec.json.encode(long), type=Facts) == long
    assert differences(long, longer)


@pytest.mark.parametrize(("name", "counts"), [
    ("VLLM_USE_DEEP_GEMM", True), ("TORCHINDUCTOR_MAX_AUTOTUNE", True), ("CUDA_HOME", True),
    ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", False), ("VLLM_CACHE_ROOT", False), ("VLLM_API_KEY", False), ("LANG", False),
    ("NCCL_DEBUG", False),
])  # fmt: skip
def test_what_the_front_door_inherits_counts_where_a_compiler_goes_by_it(
    home: Home, program: Path, tmp_path: Path, name: str, counts: bool
) -> None:
    """vLLM's source says which of its own do not; Ingot's values for a launch stand above those inherited."""
    (tmp_path / "envs.py").write_text(
        "def compile_factors():\n    ignored_factors: set[str] = {'VLLM_HTTP_TIMEOUT_KEEP_ALIVE'}\n"
    )
    plan, _ = planned(home, program, None, CPU)
    assert plan is not None
    source = VllmSource(Packages(()), tmp_path)
    without, inherited = (facts_of(plan, source, CPU, environ) for environ in ({}, {name: "1"}))
    assert without is not None
    assert inherited is not None
    assert bool(differences(without, inherited)) == counts
    assert inherited.installed == str(tmp_path)


def test_versions_are_those_of_what_compiles(home: Home, tmp_path: Path) -> None:
    """In vLLM's own Python, which for the stand-in is this one."""
    found = facts(home, install(tmp_path, "0.33.0rc1+cpu")).versions
    assert found.pop("vllm") == "0.33.0rc1+cpu"
    assert {"torch", "python"} <= found.keys() <= {*COMPILERS, "python"}


def test_modules_that_an_image_has_compiled_count(home: Home, program: Path, tmp_path: Path) -> None:
    """A launch that finds them compiles them not, and its pack lacks them."""
    plan, _ = planned(home, program, None, CPU)
    assert plan is not None
    of = [facts_of(plan, VllmSource(Packages((tmp_path,)), None), CPU, {})]
    (tmp_path / "flashinfer/data/aot/norm").mkdir(parents=True)
    (tmp_path / "flashinfer/data/aot/norm/norm.so").touch()
    of.append(facts_of(plan, VllmSource(Packages((tmp_path,)), None), CPU, {}))
    without, inside = of
    assert without is not None
    assert inside is not None
    assert len(differences(without, inside)) == 1


def test_the_gpu_and_its_drivers_branch_count(home: Home, tmp_path: Path) -> None:
    cuda = install(tmp_path / "cuda", "0.32.0")
    here = facts(home, cuda, inventory=gpus())
    assert here.driver == "580"
    same = structs.replace(gpus(), driver_version="580.99")
    assert facts(home, cuda, inventory=same) == here
    other = structs.replace(gpus(), driver_version="590.01")
    assert len(differences(here, facts(home, cuda, inventory=other))) == 1
    two = facts(home, cuda, {"tensor-parallel-size": 2}, gpus(2))
    assert two.processor.startswith("2 x ")


@pytest.mark.parametrize(
    "change",
    [{"model": "sha256:2"}, {"folder": "/elsewhere"}, {"installed": "/elsewhere"}, {"processor": "A100"},
     {"driver": "570"}, {"versions": {"vllm": "0.32.0"}}, {"versions": {**FACTS.versions, "triton": "3.7.0"}},
     {"settings": {}}],
)  # fmt: skip
def test_each_fact_is_compared(change: dict[str, Any]) -> None:
    other = structs.replace(FACTS, **change)
    assert len(differences(FACTS, other)) == len(differences(other, FACTS)) == 1
    assert not differences(FACTS, FACTS)


# ----------------------------------------------------------------------------------------------------------------------
# A pack
# ----------------------------------------------------------------------------------------------------------------------


def test_a_pack_has_what_was_compiled_and_nothing_else(made: PackFolder) -> None:
    assert packed(made) == COMPILED
    assert len(list((made.path / OBJECTS).iterdir())) == len(set(COMPILED.values()))
    assert made.pack.bytes == sum(map(len, COMPILED.values()))
    assert (made.pack.name, made.pack.facts, made.pack.cold_s) == ("one", FACTS, 116.2)
    assert verify(made.path) == made


def test_links_are_followed_only_within_the_caches(caches: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    (caches / "triton" / "AB" / "stolen").symlink_to(tmp_path / "secret")
    (caches / "triton" / "AB" / "alias").symlink_to("kernel.cubin")
    made = make_pack(caches, tmp_path / "one", profile="chat", cold_s=1, facts=FACTS)
    assert packed(made) == COMPILED | {"triton/AB/alias": b"cubin"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_where_none_may_be_written_another_folder_is_asked_for(caches: Path, tmp_path: Path) -> None:
    """As in the engine's container, which only reads the state folder's packs."""
    (tmp_path / "packs").mkdir(mode=0o500)
    with pytest.raises(PackError, match="--out"):
        make_pack(caches, tmp_path / "packs" / "one", profile="chat", cold_s=1, facts=FACTS)


def test_a_name_that_is_no_text_is_left_out(caches: Path, tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(caches / "triton") + b"/\xff.cubin")).touch()
    assert packed(make_pack(caches, tmp_path / "one", profile="chat", cold_s=1, facts=FACTS)) == COMPILED


def test_nothing_is_left_where_none_can_be_made(caches: Path, tmp_path: Path, made: PackFolder) -> None:
    for out, source, code in (
        (made.path, caches, "file-exists"),
        (tmp_path / "empty", tmp_path / "nothing", "nothing-compiled"),
        (tmp_path / "a b", caches, "name"),
        (made.path / MANIFEST / "one", caches, "out"),
    ):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(PackError) as raised:
            make_pack(source, out, profile="chat", cold_s=1, facts=FACTS)
        assert raised.value.code == code
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("path", [
    "triton/../../x", "/etc/passwd", "huggingface/token", "triton", "triton//x", "triton/./x", "vllm-config/x", "",
    "..", "triton/a\nb", "triton/" + 200 * "\u00fc",
])  # fmt: skip
def test_a_pack_reaches_nothing_but_caches_of_code(made: PackFolder, path: str) -> None:
    assert not is_path(path)
    first = made.pack.files[0]
    hostile = structs.replace(made.pack, files=(structs.replace(first, path=path),))
    (made.path / MANIFEST).write_bytes(encode(hostile))
    with pytest.raises(PackError):
        read_pack(made.path)


def test_a_file_is_not_another_ones_folder(made: PackFolder) -> None:
    first = made.pack.files[0]
    hostile = structs.replace(made.pack, files=(first, structs.replace(first, path=f"{first.path}/inside")))
    (made.path / MANIFEST).write_bytes(encode(hostile))
    with pytest.raises(PackError):
        read_pack(made.path)


def test_a_list_of_deep_paths_takes_little_memory(made: PackFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read before anybody's signature is known, and by each preflight."""
    [first, *_] = made.pack.files
    deep = "/".join("d" * 60 for _ in range(60))
    files = tuple(structs.replace(first, path=f"triton/{number}/{deep}") for number in range(200))
    (made.path / MANIFEST).write_bytes(raw := encode(structs.replace(made.pack, files=files)))
    monkeypatch.setattr(pack, "MAX_MANIFEST_BYTES", 1 << 20)  # so much is set aside before it is read
    tracemalloc.start()
    try:
        read_pack(made.path)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(raw)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("facts", [
    {"processor": "\x1b[31mred"}, {"folder": "/a\nb"}, {"settings": {"a\x00": "1"}},
])  # fmt: skip
def test_a_terminal_shows_facts_as_they_are(made: PackFolder, facts: dict[str, Any]) -> None:
    hostile = structs.replace(made.pack, facts=structs.replace(made.pack.facts, **facts))
    (made.path / MANIFEST).write_bytes(encode(hostile))
    with pytest.raises(PackError):
        read_pack(made.path)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"format": 9}', b'{"format": 2, "name": "x"}', b"\xff\xfe"])
def test_a_damaged_list_is_an_error_of_the_pack(made: PackFolder, raw: bytes) -> None:
    (made.path / MANIFEST).write_bytes(raw)
    with pytest.raises(PackError):
        read_pack(made.path)


# ----------------------------------------------------------------------------------------------------------------------
# Which one a launch uses
# ----------------------------------------------------------------------------------------------------------------------


def test_the_first_that_fits_is_used_and_else_the_nearest_is_named(caches: Path, tmp_path: Path) -> None:
    packs = tmp_path / "packs"
    far = structs.replace(FACTS, model="sha256:2")
    near = structs.replace(FACTS, driver="570", settings={})
    for name, of in (("a", far), ("b", near), ("c", FACTS), ("d", FACTS)):
        make_pack(caches, packs / name, profile="chat", cold_s=1, facts=of)
    found = judge(FACTS, store.packs((packs,)))
    assert found.pack is not None
    assert found.pack.pack.name == "c"
    other = judge(structs.replace(FACTS, driver="590"), store.packs((packs,)))
    assert other.pack is None
    assert other.chosen is not None
    assert (other.chosen.folder.pack.name, len(other.chosen.reasons)) == ("c", 1)
    assert judge(FACTS, store.packs((tmp_path / "none",))).chosen is None


def test_one_that_cannot_be_read_does_not_hide_the_others(made: PackFolder) -> None:
    broken = made.path.parent / "broken"
    broken.mkdir()
    found = judge(FACTS, store.packs((made.path.parent,)))
    assert found.pack == made
    assert [error.code for error in found.unreadable] == ["not-a-pack"]


def test_an_image_may_bring_packs(home: Home) -> None:
    own = home.root / "cache-packs"
    assert folders(home, {}) == (own,)
    assert folders(home, {"INGOT_CACHE_PACKS": "/opt/packs"}) == (own, Path("/opt/packs"))
    assert folders(home, {"INGOT_CACHE_PACKS": "/opt/packs:/cache-packs"})[1:] == (
        Path("/opt/packs"),
        Path("/cache-packs"),
    )
    assert folders(home, {"INGOT_CACHE_PACKS": ":"}) == (own,)


def test_a_setting_that_names_no_folder_of_packs_is_told(home: Home, tmp_path: Path) -> None:
    """One that is not there is none: an image names places where a site may mount its own."""
    (tmp_path / "file").touch()
    named = {"INGOT_CACHE_PACKS": f"packs:{tmp_path}/none:{tmp_path}/file"}
    found = list(store.packs(folders(home, named)))
    assert [error.code for error in found if isinstance(error, PackError)] == ["relative", "not-readable"]
    assert len(found) == 2


def checked(home: Home, program: Path) -> tuple[VllmPlan | None, list[str]]:
    """The plan, and the ids of what the check of packs found."""
    context = PreflightContext(
        home=home, document={"name": "chat", "engine": "vllm", "model": {"path": "tiny"}}, inventory=CPU,
        environ={"INGOT_VLLM": str(program), "PATH": os.environ["PATH"]}, surroundings=Surroundings(),
    )  # fmt: skip
    report = run(context)
    assert report.plan is None or isinstance(report.plan, VllmPlan)
    return report.plan, [one.id for one in report.findings if one.id.startswith(("cache-pack", "caches-"))]


def test_preflight_says_whether_a_launch_is_warm(home: Home, program: Path, caches: Path) -> None:
    of = facts(home, program)
    assert checked(home, program)[1] == []
    packs = home.root / "cache-packs"
    make_pack(caches, packs / "other", profile="chat", cold_s=80, facts=structs.replace(of, folder="/elsewhere"))
    plan, found = checked(home, program)
    assert (found, plan and plan.pack) == (["caches-cold"], None)
    fits = make_pack(caches, packs / "right", profile="chat", cold_s=80, facts=of)
    plan, found = checked(home, program)
    assert (found, plan and plan.pack) == (["caches-warm"], fits)
    (packs / "right" / MANIFEST).write_text("{")
    plan, found = checked(home, program)
    assert (found, plan and plan.pack) == (["cache-pack-unreadable", "caches-cold"], None)


# ----------------------------------------------------------------------------------------------------------------------
# How a launch gets it
# ----------------------------------------------------------------------------------------------------------------------


def test_a_launch_works_on_a_copy_that_later_ones_find_again(made: PackFolder, tmp_path: Path) -> None:
    copy = working_copy(made, tmp_path / "home")
    assert content(copy) == COMPILED
    for file in made.pack.files:  # ninja builds again what is older than its source
        assert (copy / file.path).stat().st_mtime_ns == file.modified_ns
    (copy / "triton" / "new").write_bytes(b"compiled since")
    assert working_copy(made, tmp_path / "home") == copy
    assert content(copy) == COMPILED | {"triton/new": b"compiled since"}
    assert packed(made) == COMPILED


def test_copies_of_packs_that_are_gone_go(made: PackFolder, caches: Path, tmp_path: Path) -> None:
    """Profiles with packs of their own may take turns."""
    home = tmp_path / "home"
    again = make_pack(caches, tmp_path / "packs" / "two", profile="chat", cold_s=1, facts=FACTS)
    copies = [working_copy(pack, home) for pack in (made, again)]
    (home / "vllm").mkdir()
    (home / ".partial-vllm-pack-0123456789abcdef").mkdir()  # of a launch that was killed, with a pack that is gone
    clear_orphans(home, [made, again], None)
    assert sorted(home.iterdir()) == sorted([*copies, home / "vllm"])
    clear_orphans(home, [again], made)  # it was removed a moment ago
    clear_orphans(home, [again, PackError("not-readable", "a folder that is not mounted")], None)
    assert sorted(home.iterdir()) == sorted([*copies, home / "vllm"])
    clear_orphans(home, [again], None)
    assert sorted(home.iterdir()) == sorted([copies[1], home / "vllm"])


@pytest.mark.parametrize("harm", ["changed", "missing", "linked", "longer", "folder", "in a linked folder"])
def test_nothing_of_a_damaged_pack_is_used(made: PackFolder, tmp_path: Path, harm: str) -> None:
    victim = object_of(made, "triton/AB/kernel.cubin")
    victim.unlink()
    match harm:
        case "changed":
            victim.write_bytes(b"CUBIN")
        case "longer":
            victim.write_bytes(b"cubin and more")
        case "linked":
            (tmp_path / "elsewhere").write_bytes(b"cubin")
            victim.symlink_to(tmp_path / "elsewhere")
        case "folder":
            victim.mkdir()
        case "in a linked folder":
            victim.parent.rename(tmp_path / "elsewhere")
            (tmp_path / "elsewhere" / victim.name).write_bytes(b"cubin")
            victim.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PackError):
        working_copy(made, tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []
    with pytest.raises(PackError):
        verify(made.path)


def test_a_full_disk_is_not_taken_for_a_damaged_pack(made: PackFolder, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(OSError, match="File too large") as raised, no_file_over(1000):
        working_copy(made, home)
    assert raised.value.filename == str(place_of(made, home))
    assert list(home.iterdir()) == []


def test_a_copy_has_its_name_only_once_the_disk_has_it(
    made: PackFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut leaves under that name is taken for whole ever after."""
    synced, named, rename = set(), [], os.rename
    monkeypatch.setattr(os, "fsync", lambda handle: synced.add(os.fstat(handle).st_ino))

    def remember(source: Path, target: Path) -> None:
        named.append(set(synced))
        rename(source, target)

    monkeypatch.setattr(os, "rename", remember)
    copy = working_copy(made, tmp_path / "home")
    assert named == [{path.stat().st_ino for path in (copy, *copy.rglob("*"))}]


def test_a_pack_of_nothing_keeps_no_launch_from_starting(made: PackFolder, tmp_path: Path) -> None:
    (made.path / MANIFEST).write_bytes(encode(structs.replace(made.pack, files=())))
    assert content(working_copy(read_pack(made.path), tmp_path / "home")) == {}


def test_a_cut_off_copy_is_made_anew(made: PackFolder, tmp_path: Path) -> None:
    half = tmp_path / "home" / f".partial-vllm-pack-{made.digest[:16]}" / "triton"
    half.mkdir(parents=True)
    (half / "half").write_bytes(b"")
    assert content(working_copy(made, tmp_path / "home")) == COMPILED
    assert len(list((tmp_path / "home").iterdir())) == 1
