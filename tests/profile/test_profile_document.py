"""The document: every problem named with field, value and remedy; what is written is what was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.core_protocol import SAMPLING_LIMITS, SamplingParams
from appliance.home import Home
from appliance.profile.active import ActiveProfile, read_active, write_active
from appliance.profile.document import (
    apply_patch,
    check,
    content_hash,
    diff,
    export,
    load,
    parse,
    to_document,
)
from appliance.profile.schema import BY_KEY, SETTINGS, ProfileError, Setting, Type
from appliance.profile.sizes import format_size, parse_size

GOOD: dict[str, Any] = {"name": "chat", "model": {"path": "Qwen3-8B"}}


def with_value(key: str, value: Any) -> dict[str, Any]:
    return apply_patch(GOOD, {key: value})


def test_the_least_profile_has_every_default_of_its_row() -> None:
    """A default stands in one place, the row; `load` fills it in."""
    profile = load(GOOD)
    assert profile.served_model_name == "chat"
    assert profile.max_num_seqs == BY_KEY["max-num-seqs"].default == 256
    assert profile.backends == dict.fromkeys(profile.backends, "auto")
    assert profile.sampling_defaults == {}
    assert to_document(profile) == {"schema": 1, **GOOD}


def test_every_setting_is_documented() -> None:
    """Each row says what it is for, and its default passes its own judgement."""
    for setting in SETTINGS:
        assert setting.help.endswith("."), setting.key
        assert setting.group
        if not setting.required and setting.default is not None:
            assert check(with_value(setting.key, setting.default)) == []
        assert setting.required or setting.default is not None or setting.none


def test_sampling_defaults_are_named_as_the_engine_names_them() -> None:
    """`sampling_defaults` can be handed to SamplingParams as it is."""
    names = [key.split(".")[1].replace("-", "_") for key in BY_KEY if key.startswith("sampling-defaults.")]
    assert set(names) <= set(SamplingParams.__struct_fields__)
    profile = load(with_value("sampling-defaults.top-p", 1))
    chosen: dict[str, Any] = dict(profile.sampling_defaults)
    assert SamplingParams(**chosen).top_p == 1.0


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("max-modellen", 1, "`max-model-len`"),
        ("max_model_len", 1, "`max-model-len`"),
        ("temperature", 1, "sampling-defaults: {temperature"),
        ("modle", {"path": "x"}, "`model`"),
        ("qwertyuiop", 1, "Remove it"),
        ("model.pth", "x", "`model.path`"),
        ("backends.attn", "torch", "`backends.attention`"),
        ("name", 3, "quotes"),
        ("name", "A B", "lower-case"),
        ("name", "a" * 65, "at most 64"),
        ("name", "", "value"),
        ("name", "a/../b", "lower-case"),
        ("name", "-a", "lower-case"),
        ("name", "a\n", "Remove"),
        ("model", "x", "under 'model'"),
        ("model", ["x"], "under 'model'"),
        ("model.path", "a\x00b", "Remove"),
        ("model.path", "a\ud800b", "Remove"),
        ("model.digest", "sha256:12", "64 hexadecimal"),
        ("engine", "vlm", "`vllm`"),
        ("engine", True, "quotes"),
        ("device", "cuda:0", "GPU-<uuid>"),
        ("device", "GPU-1", "GPU-<uuid>"),
        ("dtype", "fp64", "one of"),
        ("max-model-len", -1, "at least 1"),
        ("max-model-len", 0, "at least 1"),
        ("max-model-len", 1 << 40, "at most 16,777,216"),
        ("max-model-len", True, "number"),
        ("max-model-len", 1.5, "number"),
        ("max-model-len", "4096", "without quotes"),
        ("max-model-len", [1], "number"),
        ("max-num-seqs", 0, "at least 1"),
        ("block-size", 17, "one of"),
        ("gpu-memory-utilization", 0, "greater than 0"),
        ("gpu-memory-utilization", 1.01, "at most 1"),
        ("gpu-memory-utilization", float("nan"), "greater than 0"),
        ("gpu-memory-utilization", 10**400, "at most 1"),
        ("prefix-caching", "yes", "`true`"),
        ("prefix-caching", 1, "`true` or `false`"),
        ("kv-cache-memory-bytes", "2 apples", "GiB"),
        ("kv-cache-memory-bytes", "0.3 B", "GiB"),
        ("kv-cache-memory-bytes", -5, "at least 1"),
        ("kv-cache-memory-bytes", "9999999 TiB", "at most"),
        ("schema", 2, "one of"),
        ("sampling-defaults.temperature", 3, "at most 2"),
        ("sampling-defaults.top-p", 0, "greater than 0"),
        ("sampling-defaults.logit-bias", 1, "temperature"),
        ("sampling-defaults.max-tokens", -1, "at least 1"),
        ("backends.attention", "fa9", "one of"),
        ("vllm.extra-args.trust-remote-code", True, "Remove it"),
        ("vllm.extra-args.port", 1, "Remove it"),
        ("vllm.extra-args.max-model-len", 1, "Use `max-model-len`"),
        ("vllm.extra-args.seeed", 1, "`seed`"),
        ("vllm.extra-args.seed", "one", "random"),
        ("vllm.extra-args.seed", True, "random"),
        ("vllm.extra-args.seed", 1 << 70, "smaller"),
        ("vllm.extra-args", [1], "a mapping"),
        ("vllm.environment.LD_PRELOAD", "x.so", "Remove it"),
        ("vllm.environment.NCCL_DEBUG", "LOUD", "One of: VERSION, WARN"),
        ("vllm.environment.VLLM_WORKER_MULTIPROC_METHOD", "forkserver", "Did you mean `fork`?"),
        ("vllm.extra-args.runner", "pool", "Did you mean `pooling`?"),
        ("vllm.environment.NCCL_DEBUG", 1, "One of"),
        ("vllm.environment.NCCL_IB_HCA", "$(reboot)", "matches"),
    ],
)
def test_a_bad_value_is_named_with_its_remedy(key: str, value: Any, remedy: str) -> None:
    """One problem, at the field, with what to do."""
    document = {**GOOD, key: value} if key in ("model", "vllm") else with_value(key, value)
    problems = check(document)
    assert [problem.field for problem in problems] == [key]
    assert remedy in problems[0].remedy
    with pytest.raises(ProfileError):
        load(document)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("VLLM_LOGGING_LEVEL", level) for level in ("debug", "Warn", "WARNING", "FATAL", "NOTSET")),
        *(("NCCL_DEBUG", level) for level in ("warn", "Version", "ABORT")),
    ],
)
def test_a_level_of_logs_may_be_spelled_as_its_reader_takes_it(name: str, value: str) -> None:
    assert check(with_value(f"vllm.environment.{name}", value)) == []
    assert check(with_value(f"vllm.environment.{name}", f"{value}s")) != []


def test_all_problems_are_reported_at_once() -> None:
    """A form can show each beside its field."""
    problems = check({"engine": "x", "max-num-seqs": 0, "modell": 1})
    assert [p.field for p in problems] == ["modell", "name", "model.path", "engine", "max-num-seqs"]


def test_keys_that_are_not_text_are_refused() -> None:
    """Documents may come from elsewhere than our parser."""
    problems = check({**GOOD, 5: 1, "backends": {None: "x"}})  # type: ignore[dict-item]
    assert [p.field for p in problems] == ["5", "backends.None"]


@pytest.mark.parametrize("key", ["max-modellen", "temperature", "qwertyuiop"])
def test_the_patch_of_an_unknown_key_mends_the_document(key: str) -> None:
    """The fix that a page applies leads to a document without that problem."""
    document = with_value(key, 1)
    (problem,) = check(document)
    assert problem.patch
    assert check(apply_patch(document, problem.patch)) == []


@pytest.mark.parametrize(
    ("change", "patch"),
    [
        ({"dtype": "bfloat17"}, {"dtype": "bfloat16"}),
        ({"dtype": "int3"}, None),
        ({"chat-encoding": "deepseek-v4"}, None),
        ({"chat-encoding": "deepseek-v3"}, {"chat-encoding": "deepseek-v3.2"}),
        ({"chat-encoding": "deepseek-v4-0713"}, {"chat-encoding": "deepseek-v4-0731"}),
        (
            {"sampling-defaults": {"temperatur": 1}},
            {"sampling-defaults.temperatur": None, "sampling-defaults.temperature": 1},
        ),
        ({"sampling-defaults": {"temperatur": "hot"}}, None),
    ],
)
def test_a_patch_keeps_what_was_meant_or_there_is_none(change: dict[str, Any], patch: dict[str, Any] | None) -> None:
    assert [problem.patch for problem in check(GOOD | change)] == [patch]


def test_null_is_taken_only_where_a_row_says_what_it_means() -> None:
    """`max-model-len: null` is the model's own; `engine: null` is a mistake."""
    assert load({**GOOD, "max-model-len": None}).max_model_len is None
    assert [p.field for p in check({**GOOD, "engine": None})] == ["engine"]


@pytest.mark.parametrize(
    ("source", "key", "value"),
    [
        ("max_model_len: 10", "max-model-len", 10),
        ("--max-model-len: 10", "max-model-len", 10),
        ("enable_prefix_caching: false", "prefix-caching", False),
        ("no-enable-prefix-caching: true", "prefix-caching", False),
        ("tp: 2", "tensor-parallel-size", 2),
        ("backends: {gdn_prefill: triton}", "backends.gdn-prefill", "triton"),
        ("attention_backend: triton", "backends.attention", "triton"),
        ("vllm: {extra_args: {--seed: 1}}", "vllm.extra-args.seed", 1),
        ("sampling_defaults: {top_p: 0.5}", "sampling-defaults.top-p", 0.5),
    ],
)
def test_spellings_of_vllm_users_are_read_as_ours(source: str, key: str, value: Any) -> None:
    """`parse` accepts them; what it gives is canonical and valid."""
    document = parse(f"name: chat\nmodel: Qwen3-8B\n{source}\n")
    assert document["model"] == {"path": "Qwen3-8B"}
    assert check(document) == []
    section, _, name = key.rpartition(".")
    for part in section.split(".") if section else []:
        document = document[part]
    assert document[name] == value


@pytest.mark.parametrize(
    "source",
    [
        "max_model_len: 1\nmax-model-len: 2\n",
        "backends: {attention: torch}\nattention-backend: triton\n",
        "backends: {gdn_prefill: torch, gdn-prefill: torch}\n",
        "vllm: {}\n--vllm: 3\n",
        "vllm: 3\n--vllm: {}\n",
    ],
)
def test_one_setting_in_two_spellings_is_refused(source: str) -> None:
    """Which of them would hold must not be left to chance."""
    with pytest.raises(ProfileError, match=r"(?i)twice"):
        parse(source)


def test_patch_sets_and_removes_and_leaves_the_original_alone() -> None:
    """Dotted keys; None removes, and an emptied section goes with its last key."""
    document = {**GOOD, "backends": {"moe": "triton"}}
    patched = apply_patch(document, {"backends.moe": None, "max-num-seqs": 4, "vllm.extra-args.seed": 1})
    assert patched == {**GOOD, "max-num-seqs": 4, "vllm": {"extra-args": {"seed": 1}}}
    assert document["backends"] == {"moe": "triton"}


def test_diff_counts_what_is_left_out_as_its_default() -> None:
    """Writing a default out is no change."""
    before = {**GOOD, "max-num-seqs": 256, "backends": {"moe": "auto"}}
    after = {**GOOD, "max-num-seqs": 8, "vllm": {"environment": {"NCCL_DEBUG": "INFO"}}}
    assert [(c.key, c.before, c.after) for c in diff(before, after)] == [
        ("max-num-seqs", 256, 8),
        ("vllm.environment.NCCL_DEBUG", None, "INFO"),
    ]


def test_equal_profiles_have_equal_hashes_whatever_they_write_out() -> None:
    """The hash is of what a document says, not of how; it is the same in every process."""
    left = load(parse("name: chat\nmodel: {path: Qwen3-8B}\nkv-cache-memory-bytes: 2 GiB\nmax-num-seqs: 256\n"))
    right = load(parse('{"kv-cache-memory-bytes": 2147483648, "model": {"path": "Qwen3-8B"}, "name": "chat"}'))
    assert content_hash(left) == content_hash(right)
    assert content_hash(left) != content_hash(load(GOOD))


@pytest.mark.parametrize(
    ("text", "size"),
    [("2 GiB", 2 << 30), ("512MiB", 512 << 20), ("1.5 GB", 1_500_000_000), ("7", 7), ("3 kb", 3000), ("0.5 KiB", 512)],
)
def test_sizes_with_units(text: str, size: int) -> None:
    """Binary and decimal units, exactly."""
    assert parse_size(text) == size


@given(st.integers(1, 1 << 50))
def test_sizes_round_trip(size: int) -> None:
    """What is written is read as the same number of bytes."""
    assert parse_size(str(format_size(size))) == size


def _values(setting: Setting) -> st.SearchStrategy[Any]:
    """Any valid value of a row."""
    if setting.allowed:
        return st.sampled_from(setting.allowed)
    if setting.key == "site-backends":
        sites = {"linear@64x2048:float32": st.just("torch"), "rms_norm@2048": st.sampled_from(("auto", "triton"))}
        return st.fixed_dictionaries({}, optional=sites)
    if setting.key == "vllm.extra-args":
        values = {
            "seed": st.integers(-9, 9),
            "cpu-offload-gb": st.floats(0, 9),
            "enable-eplb": st.booleans(),
            "quantization": st.just("no"),
            "compilation-config": st.just('{"mode": 3}'),
            "cudagraph-capture-sizes": st.lists(st.integers(1, 9), min_size=1, max_size=3),
        }
        return st.fixed_dictionaries({}, optional=values)
    if setting.key == "ray.hosts":
        return st.just(1)  # more of them need an address and a number of GPUs to go with it
    if setting.key == "vllm.environment":
        return st.fixed_dictionaries({}, optional={"NCCL_DEBUG": st.just("INFO"), "OMP_NUM_THREADS": st.just("0012")})
    if setting.type is Type.BOOLEAN:
        return st.booleans()
    if setting.type is Type.TEXT:
        if setting.pattern:
            return st.from_regex(setting.pattern.replace("$", r"\Z"), fullmatch=True).filter(
                lambda text: text.isascii() and len(text) <= setting.max_length
            )
        return st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.isprintable)
    if setting.type in (Type.INTEGER, Type.SIZE):
        return st.integers(int(setting.minimum or 0), int(setting.maximum or 1 << 20))
    low = setting.minimum if setting.minimum is not None else setting.above
    return st.floats(low, setting.maximum, exclude_min=setting.above is not None, allow_subnormal=False)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Any valid document."""
    document: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting.required or draw(st.booleans()):
            document = apply_patch(document, {setting.key: draw(_values(setting))})
    return document


@settings(max_examples=150, deadline=None)
@given(documents())
def test_export_and_parse_give_the_same_profile(document: dict[str, Any]) -> None:
    """Export writes what was said, no more than differs from the defaults, and always the same way."""
    assert check(document) == []
    profile = load(document)
    exported = export(profile)
    again = load(parse(exported))
    assert again == profile
    assert export(again) == exported
    assert content_hash(again) == content_hash(profile)
    assert diff(to_document(profile), to_document(again)) == []


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=8)  # half surrogate pairs too
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**30) | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*BY_KEY, *{key.split(".")[0] for key in BY_KEY}]) | ANY_TEXT


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(KEYS.filter(lambda key: "." not in key), JUNK, max_size=6),
    st.lists(st.tuples(KEYS, JUNK), max_size=4),
)
def test_any_document_is_loaded_or_refused(document: dict[str, Any], patches: list[tuple[str, Any]]) -> None:
    """Whatever plain data comes, the answer is a profile or problems that name field and remedy."""
    for key, value in patches:
        document = apply_patch(document, {key: value})
    problems = check(document)
    assert all(problem.message and problem.remedy for problem in problems)
    assert msgspec.json.encode(problems)
    if problems:
        with pytest.raises(ProfileError):
            load(document)
    else:
        load(document)


@pytest.mark.parametrize("name", ["0e0", "12", "1.5", "true", "null", "no", "1e3", "2024-01-01", "0x1f", "012", "1-2"])
def test_a_name_that_looks_like_something_else_comes_back_as_it_was(name: str) -> None:
    """Export quotes what this reader would take for a number, a boolean or nothing."""
    profile = load({**GOOD, "name": name, "served-model-name": name.upper()})
    assert load(parse(export(profile))) == profile


def test_active_profile_round_trip(home: Home) -> None:
    """What the console writes is what the supervisor reads; nothing there is None."""
    assert read_active(home) is None
    active = ActiveProfile(launch="20261120-1", revision="7", document={**GOOD, "vllm": {"environment": {"A": "012"}}})
    write_active(home, active)
    assert read_active(home) == active
    assert home.active_profile.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "content",
    ["", "profile: 3", "launch: 1\nprofile: {}", "revision: 5\nprofile: {}", "a: [", "\x00", "launch: x\n"],
)
def test_a_damaged_active_profile_is_a_profile_error(home: Home, content: str) -> None:
    """It names the file and the way out."""
    home.active_profile.write_text(content)
    with pytest.raises(ProfileError) as caught:
        read_active(home)
    (problem,) = caught.value.problems
    assert problem.value == str(home.active_profile)
    assert "Activate" in problem.remedy


def test_an_active_profile_that_is_a_folder_is_a_profile_error(home: Home) -> None:
    """Any reason why it cannot be read is reported."""
    home.active_profile.mkdir()
    with pytest.raises(ProfileError, match="cannot be read"):
        read_active(home)


def test_the_published_schema_is_current() -> None:
    """docs/profile.schema.json is what the rows say; `python -m appliance.profile.json_schema` prints it."""
    from appliance.profile import json_schema

    published = Path(__file__).parents[2] / "docs" / "profile.schema.json"
    assert published.read_text() == json_schema.text()


@settings(max_examples=60, deadline=None)
@given(documents())
def test_valid_documents_pass_the_published_schema(document: dict[str, Any]) -> None:
    """An editor that uses the schema accepts what we accept."""
    import jsonschema

    from appliance.profile.json_schema import json_schema

    jsonschema.Draft202012Validator(json_schema()).validate(document)


@pytest.mark.parametrize("bad", [{}, {"name": "a"}, {**GOOD, "nope": 1}, {**GOOD, "max-num-seqs": 0}])
def test_the_published_schema_refuses_what_we_refuse(bad: dict[str, Any]) -> None:
    """Required keys, unknown keys and ranges."""
    import jsonschema

    from appliance.profile.json_schema import json_schema

    assert not jsonschema.Draft202012Validator(json_schema()).is_valid(bad)
    assert check(bad)


@pytest.mark.parametrize("name", SAMPLING_LIMITS)
def test_a_sampling_default_may_be_what_a_request_may_be(name: str) -> None:
    """A profile cannot set what the API refuses, nor the other way round; top-p alone excludes its least, 0."""
    setting = BY_KEY[f"sampling-defaults.{name.replace('_', '-')}"]
    least = setting.above if name == "top_p" else setting.minimum
    assert (least, setting.maximum) == SAMPLING_LIMITS[name]
