"""Messages that no row knows are looked up in the engine's own source, which is read once and never imported."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.diagnosis.axes import WHATS
from appliance.diagnosis.causes import CATALOGUE, FAMILIES
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.raise_sites.areas import ALLIED, AREAS, NOUNS, SUBJECTS, area_of, contradicts
from appliance.diagnosis.raise_sites.harvest import harvest
from appliance.diagnosis.raise_sites.install import NotInstalledError, install_index, installed_index
from appliance.diagnosis.raise_sites.lookup import NO_SITES, FoundSite, RaiseSites, _innermost
from appliance.diagnosis.raise_sites.site import Index, RaiseSite, make_index, read_index, write_index
from appliance.diagnosis.searchable import Searchable
from appliance.protocol import Diagnosis, Outcome
from tests.diagnosis.coverage import Answer, log_of, message_of, reached_in_a_start

MODULES = {
    "v1/core/blocks.py": """
class Pool:
    def __init__(self, config):
        def check():
            raise ValueError(f"The frobnication of {config.block_count} blocks exceeds {limit:,} for {config.name!r}.")
""",
    "distributed/pairs.py": """
def join(rank):
    message = "Rank %d cannot greet its neighbour %s" % (rank, other)
    if rank:
        raise RuntimeError(message)
    assert rank > 0, "A rank is positive, as everybody " + str(rank) + " knows"
    assert rank
    raise odd.PairError("Greeting {name} took {0} seconds".format(seconds))
""",
    "lora/odd.py": """
logger.error("The adapter %s has %.2f odd knobs", path, knobs)
logger.warning("The adapter is odd but nobody minds that")
raise NotImplementedError
raise the_error
raise ValueError("Say what")
""",
    "v1/attention/odd.py": 'raise ValueError("Say what")',
    "config/odd.py": """
class OddConfig:
    def check(self):
        raise ValueError(f"The odd size of {self.max_num_seqs} sequences pleases nobody at all")
""",
    "config/checks.py": """
class OddParallel:
    def check(self):
        odd = self.decode_context_parallel_size
        if self.enable_eplb:
            if not platform.is_odd():
                raise ValueError("Balancing what nobody carries is only done on odd devices today")
        elif odd > self.tensor_parallel_size:
            raise ValueError(f"The odd width of {odd} is beyond what anybody shares here")
""",
    "v1/worker/wrap.py": 'raise RuntimeError(f"The worker of this engine was told by another: {error}")',
    "tool_parsers/lost.py": 'raise RuntimeError("The odd parser could not find its closing mark in the tokenizer")',
    "broken.py": "def (:\n",
    "imported.py": 'raise RuntimeError("The harvest imports nothing of what it reads")',
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, source in MODULES.items():
        file = tmp_path / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return tmp_path / "vllm"


@pytest.fixture
def index(package: Path) -> Index:
    return make_index("vllm", "9.9.0", harvest(package))


@pytest.fixture
def sites(index: Index) -> RaiseSites:
    return RaiseSites(lambda: index)


def told(text: str, sites: RaiseSites, **known: Any) -> Diagnosis:
    return diagnose(number_lines(text), sites=sites, **{"failed": True, **known})


def traceback(ended: str, module: str = "v1/engine/core.py", line: int = 5) -> str:
    frame = f'  File "/opt/lib/python3.11/site-packages/vllm/{module}", line {line}, in f\n    raise\n'
    return f"Traceback (most recent call last):\n{frame}{ended}\n"


# ----------------------------------------------------------------------------------------------------------------------
# The harvest
# ----------------------------------------------------------------------------------------------------------------------


def test_every_way_to_write_a_message_is_read(package: Path) -> None:
    found = [(site.kind, site.type, site.parts, site.gaps) for site in harvest(package) if "pairs" in site.module]
    assert found == [
        ("raise", "RuntimeError", ("Rank ", " cannot greet its neighbour ", ""), ("rank", "other")),
        ("assert", "AssertionError", ("A rank is positive, as everybody ", " knows"), ("",)),
        ("raise", "PairError", ("Greeting ", " took ", " seconds"), ("name", "")),
    ]


def test_a_site_is_named_by_file_line_and_scope(package: Path) -> None:
    (site,) = [site for site in harvest(package) if "blocks" in site.module]
    assert (site.module, site.line, site.scope) == ("vllm/v1/core/blocks.py", 5, "Pool.__init__.check")
    assert site.gaps == ("block_count", "limit", "name")


def test_the_conditions_around_a_site_are_kept(package: Path) -> None:
    """The innermost first, and a local variable by what it holds."""
    balancing, width = (site for site in harvest(package) if "checks" in site.module)
    assert balancing.when == ("is_odd", "platform", "enable_eplb")
    assert width.when == ("decode_context_parallel_size", "tensor_parallel_size", "enable_eplb")
    assert width.gaps == ("decode_context_parallel_size",)


def test_errors_that_are_logged_count_and_warnings_do_not(package: Path) -> None:
    found = [(site.kind, site.parts) for site in harvest(package) if "lora" in site.module]
    assert found == [
        ("log", ("The adapter ", " has ", " odd knobs")),
        ("raise", ("",)),
        ("raise", ("Say what",)),
    ]


def test_an_index_is_read_as_it_was_written(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "share" / "index.json.gz"
    write_index(path, index)
    assert read_index(path) == index


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b"{}"), gzip.compress(b"[")],
    ids=["empty", "not-gzip", "no-fields", "cut-off"],
)
def test_an_index_that_is_damaged_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index").write_bytes(content)
    assert read_index(tmp_path / "index") is None
    assert read_index(tmp_path / "missing") is None


def test_an_index_of_another_format_is_none(index: Index, tmp_path: Path) -> None:
    write_index(tmp_path / "index", msgspec.structs.replace(index, format=0))
    assert read_index(tmp_path / "index") is None


def installed(package: Path, version: str) -> Path:
    """The command of a vLLM with that package, in a venv."""
    venv = package.parent / "venv"
    packages = venv / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / f"vllm-{version}.dist-info").mkdir()
    package.rename(packages / "vllm")
    (packages / "vllm" / "__init__.py").touch()
    (venv / "bin").mkdir()
    (venv / "bin" / "vllm").write_text(f"#!{venv}/bin/python\n")
    return venv / "bin" / "vllm"


def test_the_index_lies_beside_the_vllm_that_it_describes(package: Path, index: Index) -> None:
    """One of another version is not taken for it."""
    program = installed(package, "9.9.0")
    environ = {"INGOT_VLLM": str(program), "PATH": ""}
    assert installed_index(environ) is None
    path = install_index(program.with_name("python"))
    assert path.is_relative_to(program.parent.parent)
    assert installed_index(environ) == index
    information = next(program.parent.parent.glob("lib/*/*/vllm-9.9.0.dist-info"))
    information.rename(information.with_name("vllm-9.9.1.dist-info"))
    assert installed_index(environ) is None


def test_without_vllm_there_is_nothing_to_harvest(tmp_path: Path) -> None:
    with pytest.raises(NotInstalledError):
        install_index(tmp_path / "bin" / "python")
    assert installed_index({"INGOT_VLLM": str(tmp_path / "bin" / "vllm")}) is None


# ----------------------------------------------------------------------------------------------------------------------
# The search
# ----------------------------------------------------------------------------------------------------------------------


def site(module: str, *parts: str, line: int = 1, kind: str = "ValueError") -> RaiseSite:
    gaps = tuple(f"gap{number}" for number in range(len(parts) - 1))
    return RaiseSite(f"vllm/{module}", "f", line, "raise", kind, parts, gaps)


def found_in(text: str, *among: RaiseSite, kind: str = "", places: tuple[str, ...] = ()) -> FoundSite | None:
    index = make_index("vllm", "9.9.0", among)
    return RaiseSites(lambda: index).find(text, kind, places)


def test_the_values_between_the_parts_are_captured(sites: RaiseSites) -> None:
    found = sites.find("ValueError: The frobnication of 24 blocks exceeds 1,000 for 'odd'.", "ValueError")
    assert found is not None
    assert dict(found.captured) == {"block_count": "24", "limit": "1,000", "name": "'odd'"}
    assert (found.site.line, found.unique, found.version) == (5, True, "9.9.0")


def test_of_two_that_fit_the_one_with_more_words_of_its_own_counts() -> None:
    short, long = "The odd knob of this engine", "The odd knob of this engine turns by itself"
    found = found_in(f"ValueError: {long}", site("lora/a.py", short), site("config/b.py", long))
    assert found is not None
    assert found.site.module == "vllm/config/b.py"


def test_parts_in_another_order_do_not_fit() -> None:
    other = site("lora/a.py", "The first half of this ", " and its second half of that")
    assert found_in("ValueError: and its second half of that, The first half of this ", other) is None


@pytest.mark.parametrize(
    ("message", "fits"),
    [
        ("ValueError: Knobs are missing", True),
        ("ValueError: the configuration says that Knobs are missing", False),
        ("ValueError: Knobs are missing from the file of the model", False),
    ],
)
def test_few_words_count_only_as_the_whole_message(message: str, fits: bool) -> None:
    assert (found_in(message, site("lora/a.py", "Knobs are missing"), kind="ValueError") is not None) == fits


def test_what_two_areas_say_alike_is_decided_by_the_frame(sites: RaiseSites) -> None:
    """Without one nothing is claimed."""
    said = ("ValueError: Say what", "ValueError")
    assert sites.find(*said) is None
    found = sites.find(*said, ['File "/opt/vllm/v1/attention/odd.py", line 1, in f'])
    assert found is not None
    assert found.area.owner == "attention"


def test_a_check_without_a_message_is_known_by_its_file(sites: RaiseSites) -> None:
    place = 'File "/opt/vllm/distributed/pairs.py", line 7, in join'
    found = sites.find("AssertionError", "AssertionError", [place])
    assert found is not None
    assert found.area.owner == "collective"
    assert sites.find("KeyError: 'x'", "KeyError", [place]) is None


def test_no_message_is_slow_to_look_up() -> None:
    """Not even one of all the words of an index as large as a real one."""
    words = [f"{chr(97 + a)}{chr(97 + b)}{chr(97 + c)}" for a in range(20) for b in range(20) for c in range(20)]
    among = [site("lora/a.py", f"{word} odd ", " odd " * 9, f" {word} even") for word in words]
    index = make_index("vllm", "9.9.0", among)
    sites = RaiseSites(lambda: index)
    for text in (" ".join(words), "odd " * 16_000, "aaa odd " * 8_000):
        began = time.process_time()
        sites.find(text)
        assert time.process_time() - began < 0.5


# ----------------------------------------------------------------------------------------------------------------------
# The diagnosis
# ----------------------------------------------------------------------------------------------------------------------

ODD = "ValueError: The odd size of 24 sequences pleases nobody at all"


def test_a_message_that_no_row_knows_is_told_with_owner_value_and_place(sites: RaiseSites) -> None:
    found = told(f"ERROR 11-20 10:00:00 [core.py:1] {ODD}\n", sites)
    assert found.outcome is Outcome.FAILED
    assert (found.family, found.cause) == ("config", "arguments-check-failed")
    assert "24 sequences" in found.summary
    assert "vllm/config/odd.py:4 in OddConfig.check" in found.summary
    assert found.fix is not None
    assert told(ODD, NO_SITES).cause != found.cause


def test_the_setting_is_found_by_the_name_that_the_source_has_for_the_value(sites: RaiseSites) -> None:
    """The message itself does not name it."""
    profile = {"engine": "vllm", "max-num-seqs": 24, "model": {"path": "m"}}
    found = told(traceback(ODD, "config/odd.py", 4), sites, profile=profile)
    assert found.fix.patch == {"max-num-seqs": None}
    assert told(traceback(ODD, "config/odd.py", 4), NO_SITES, profile=profile).fix.patch is None


@pytest.mark.parametrize("extra", [{"enable-eplb": True}, {}])
def test_the_setting_that_a_site_depends_on_is_told_where_the_message_names_none(
    sites: RaiseSites, extra: dict[str, Any]
) -> None:
    """If the launch set it."""
    ended = (
        "pydantic_core.ValidationError: 1 validation error for OddParallel\n"
        "  Value error, Balancing what nobody carries is only done on odd devices today"
    )
    profile = {"engine": "vllm", "vllm": {"extra-args": extra}}
    found = told(traceback(ended, "config/checks.py", 7), sites, profile=profile)
    assert found.fix is not None
    assert found.fix.patch == ({"vllm.extra-args.enable-eplb": None} if extra else None)


def test_a_row_with_values_of_its_own_is_not_overridden(index: Index) -> None:
    message = "ValueError: The attention heads (24) must be divisible by the tensor parallel size (7) of this engine"
    words = ("The attention heads (", ") must be divisible by the tensor parallel size (", ") of this engine")
    others = RaiseSites(lambda: make_index("vllm", "9.9.0", [site("tool_parsers/a.py", *words)]))
    assert told(traceback(message), others) == told(traceback(message), NO_SITES)


def test_a_row_of_another_family_gives_way_where_the_words_are_the_engines_own(sites: RaiseSites) -> None:
    """The parser cannot work, and nothing is wrong with loading the tokenizer."""
    message = traceback("RuntimeError: The odd parser could not find its closing mark in the tokenizer")
    assert told(message, NO_SITES).family == "model-config"
    assert told(message, sites).cause.startswith("parser-")


def test_what_a_message_quotes_is_known_by_its_row(sites: RaiseSites) -> None:
    """Not by the words around it."""
    message = traceback("RuntimeError: The worker of this engine was told by another: "
                        "CUDA error: no kernel image is available for execution on the device")  # fmt: skip
    assert told(message, sites) == told(message, NO_SITES)
    assert told(message, sites).family == "arch"


@pytest.mark.parametrize(
    ("message", "module", "cause"),
    [
        ("ValueError: Odd knobs must be even in each and every one", "config/cache.py", "arguments-refused"),
        ("ValueError: Odd knobs must be even in each and every one", "models/odd.py", "model-check-failed"),
        ("AssertionError: This line should be unreachable for an odd knob", "models/odd.py", "model-check-failed"),
        ("OSError: The odd peer is unreachable for any knob", "distributed/kv_events.py", "connector-unreachable"),
        ("RuntimeError: The odd knob has turned by itself", "v1/executor/odd.py", "executor-error-reported"),
    ],
)
def test_what_happened_is_said_of_what_it_can_happen_to(message: str, module: str, cause: str) -> None:
    kind, _, words = message.partition(": ")
    sites = RaiseSites(lambda: make_index("vllm", "9.9.0", [site(module, words, kind=kind)]))
    assert told(traceback(message, module, 1), sites).cause == cause


def test_an_exception_that_only_points_at_another_is_nobodys(index: Index) -> None:
    words = "Engine core initialization failed. See root cause above."
    sites = RaiseSites(lambda: make_index("vllm", "9.9.0", [site("v1/engine/utils.py", words, kind="RuntimeError")]))
    pointer = traceback(f"RuntimeError: {words}", "v1/engine/utils.py", 1)
    assert told(pointer, sites) == told(pointer, NO_SITES)


def test_an_error_that_was_only_logged_explains_a_failure(sites: RaiseSites) -> None:
    """A signal that nobody explains says more, and so does the word of a server that it is up."""
    log = "ERROR 11-20 10:00:00 [odd.py:2] The adapter /m/odd has 3.14 odd knobs\n"
    assert told(log, sites).cause.startswith("adapter-")
    assert told(log, sites, exit_status=-9) == told(log, NO_SITES, exit_status=-9)
    served = log + "INFO 11-20 10:00:09 [x.py:1] Application startup complete.\n"
    assert told(served, sites, failed=False).outcome is not Outcome.FAILED
    assert told(log, sites, failed=False) == told(log, NO_SITES, failed=False)


def test_an_index_makes_no_healthy_log_fail(sites: RaiseSites) -> None:
    log = f"INFO 11-20 10:00:00 [core.py:1] {ODD}\nINFO 11-20 10:00:09 [x.py:1] Application startup complete.\n"
    assert told(log, sites, failed=False) == told(log, NO_SITES, failed=False)


def test_an_index_is_read_only_for_what_no_row_knows() -> None:
    def read() -> Index | None:
        raise AssertionError("nothing was to be looked up")

    sites = RaiseSites(read)
    assert told("INFO 11-20 10:00:09 [x.py:1] Application startup complete.\n", sites, failed=False).family is None
    heads = "ValueError: The attention heads (24) must be divisible by the tensor parallel size (7)"
    assert told(traceback(heads), sites).family == "model-config"


# ----------------------------------------------------------------------------------------------------------------------
# The reviewed table
# ----------------------------------------------------------------------------------------------------------------------

ROWS = [*AREAS.values(), *(subject.area for subject in SUBJECTS)]


def test_every_area_has_a_noun_a_family_and_relatives() -> None:
    for area in ROWS:
        assert area.owner in NOUNS
        assert area.family in FAMILIES
        assert area.family in ALLIED
        assert not contradicts(area.family, area)


def test_what_is_composed_of_areas_is_no_row() -> None:
    composed = {f"{owner}-{what.name}" for owner in NOUNS for what in WHATS}
    assert not composed & {cause.name for cause in CATALOGUE}


def test_the_longest_prefix_counts_and_a_narrower_subject_before_it() -> None:
    assert area_of(site("config/cache.py", "Odd")).owner == "arguments"
    assert area_of(site("config/lora.py", "Odd")).owner == "adapter"
    assert area_of(site("config/cache.py", "Odd: pip install odd")).owner == "python-package"
    assert area_of(RaiseSite("elsewhere/a.py", "", 1, "raise", "", ("Odd",), ())) is None


def test_the_coverage_counts_what_a_start_reaches_and_tells_it_from_its_log(index: Index, sites: RaiseSites) -> None:
    reached = list(
        reached_in_a_start([*index.sites, site("benchmarks/a.py", "Odd"), site("sampling_params.py", "Odd")])
    )
    assert {area.owner for _, area in reached} >= {"kv-cache", "collective", "adapter", "parser"}
    assert not {"tool", "request"} & {area.owner for _, area in reached}
    for one, area in reached:
        log = log_of(one, "9.9.0", traceback=True)
        assert message_of(one).split()[0] in log
        assert Answer(one, area, told(log, sites)).placed


def test_the_folder_of_an_environment_is_no_code_of_the_engine() -> None:
    """/opt/vllm holds all that vLLM runs on."""
    packages = "/opt/vllm/lib/python3.12/site-packages"
    inside = f'File "{packages}/triton/compiler/compiler.py", line 9'
    own = f'File "{packages}/vllm/lora/odd.py", line 8'
    assert _innermost([own, inside], "vllm") == ("vllm/lora/odd.py", 8)
    assert _innermost([inside], "vllm") == ("", 0)


@pytest.mark.parametrize(("module", "told"), [("sampling_params.py", False), ("lora/knobs.py", True)])
def test_what_no_start_reaches_explains_none(module: str, told: bool) -> None:
    """A request's error, or another program's."""
    known = RaiseSites(lambda: make_index("vllm", "1.0", [site(module, "The frobnication of the odd knob has failed")]))
    assert (known.find("The frobnication of the odd knob has failed") is not None) is told


@pytest.mark.parametrize(
    "modules", [("multimodal/odd.py", "multimodal/audio.py"), ("multimodal/audio.py", "multimodal/odd.py")]
)
def test_of_equal_places_one_that_a_start_reaches_counts(modules: tuple[str, str]) -> None:
    """In whatever order they come."""
    words = "The frobnication of the odd knob has failed"
    found = RaiseSites(lambda: make_index("vllm", "1.0", [site(module, words) for module in modules])).find(words)
    assert found is not None
    assert (found.area.owner, found.area.reach) == ("multimodal", "start")


PRINTS = (
    "INFO 11-20 10:00:00 [utils.py:233] vLLM API server version {}",
    "INFO 11-20 10:00:00 [core.py:61] Initializing a V1 LLM engine (v{}) with config: model='/m'",
)
ALIKE = "ValueError: The frobnication of 7 blocks exceeds 5 for 'a'."
SHORT_HERE = "ValueError: Say what"


@pytest.mark.parametrize("prints", PRINTS)
@pytest.mark.parametrize(("version", "same"), [("9.9.0", True), ("9.9.0+cpu", True), ("9.8.1", False)])
def test_only_the_words_of_another_version_count(prints: str, version: str, same: bool, sites: RaiseSites) -> None:
    """Its lines are elsewhere, and a few words may stand anywhere."""
    head = f"{prints.format(version)}\n"
    said = told(head + traceback(ALIKE, "v1/core/blocks.py", 5), sites)
    assert said.cause == told(traceback(ALIKE, "v1/core/blocks.py", 5), sites).cause
    short = told(head + traceback(SHORT_HERE, "lora/odd.py", 6), sites)
    alone = told(traceback(SHORT_HERE, "lora/odd.py", 6), sites)
    assert (short.cause == alone.cause) is same


def test_a_place_in_another_version_is_not_told(sites: RaiseSites) -> None:
    found = sites.for_log(Searchable(number_lines(PRINTS[0].format("9.8.1")))).find(ALIKE, "ValueError")
    assert found is not None
    assert not found.unique


def test_a_row_that_knows_the_type_alone_gives_way(tmp_path: Path) -> None:
    """To the place whose words say what is not supported; even where the row would change a setting."""
    source = tmp_path / "vllm" / "lora" / "odd.py"
    source.parent.mkdir(parents=True)
    source.write_text('raise NotImplementedError("The frobnicator does not support odd adapters of this engine yet")')
    index = make_index("vllm", "9.9.0", harvest(tmp_path / "vllm"))
    said = "NotImplementedError: The frobnicator does not support odd adapters of this engine yet"
    found = told(traceback(said, "lora/odd.py", 1), RaiseSites(lambda: index))
    assert found.cause == "adapter-unsupported"


def test_what_a_message_advises_is_not_its_subject() -> None:
    site = RaiseSite(
        "vllm/config/odd.py",
        "f",
        1,
        "raise",
        "ValueError",
        ("No odd device. Please set the environment variable X.",),
        (),
    )
    area = area_of(site)
    assert area is not None
    assert area.owner == "arguments"
