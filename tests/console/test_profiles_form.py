"""What is typed into the form becomes a document and comes back as it was typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.profile import document as documents
from appliance.profile.schema import BY_KEY, SETTINGS, Problem, ProfileError
from console.profiles.form import TYPED, Draft, elsewhere, from_values, groups, to_values
from console.profiles.words import label, limits


def test_every_setting_but_the_version_has_one_field():
    """No list of fields is kept by hand: a new row is a new field."""
    fields = [item.key for group in groups({}, [], []) for item in group.fields]
    assert sorted(fields) == sorted(setting.key for setting in SETTINGS if setting.key != "schema")


def test_fields_become_typed_values_and_empty_ones_are_left_out():
    document = from_values(
        {
            "name": " chat ",
            "model.path": "bundled",
            "max-model-len": "32,768",
            "gpu-memory-utilization": "0.8",
            "prefix-caching": "false",
            "kv-cache-memory-bytes": "2 GiB",
            "vllm.extra-args": "seed: 3\nquantization: awq",
            "dtype": "",
        }
    )
    assert document == {
        "schema": 1,
        "name": "chat",
        "model": {"path": "bundled"},
        "max-model-len": 32768,
        "gpu-memory-utilization": 0.8,
        "prefix-caching": False,
        "kv-cache-memory-bytes": "2 GiB",
        "vllm": {"extra-args": {"seed": 3, "quantization": "awq"}},
    }
    assert documents.check(document) == []


@pytest.mark.parametrize(
    ("key", "typed"),
    [
        ("max-num-seqs", "many"), ("max-num-seqs", "1.5"), ("max-num-seqs", "1,00"), ("gpu-memory-utilization", "half"),
        ("prefix-caching", "maybe"), ("vllm.extra-args", "- a list"), ("vllm.environment", "a: [unclosed"),
        ("max-num-seqs", "9" * 50), ("max-num-seqs", "-1"), ("dtype", "int4"), ("kv-cache-memory-bytes", "2 parsecs"),
    ],
)  # fmt: skip
def test_text_that_is_no_value_stays_as_typed_and_is_refused_at_its_field(key, typed):
    document = from_values({"name": "chat", "model.path": "bundled", key: typed})
    problems = documents.check(document)
    [shown] = [item for group in groups({key: typed}, problems, []) for item in group.fields if item.problems]
    assert (shown.key, shown.value) == (key, typed)
    assert all(problem.message and problem.remedy for problem in shown.problems)


@given(st.dictionaries(st.sampled_from([setting.key for setting in TYPED]), st.text(max_size=30)))
def test_whatever_is_typed_there_is_an_answer(values):
    """No text in any field is a fault of the console's."""
    problems = documents.check(from_values(values))
    groups(values, problems, ["Qwen3-8B"])


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "max-num-seqs": st.integers(1, 4096),
            "gpu-memory-utilization": st.floats(0.01, 1),
            "prefix-caching": st.booleans(),
            "dtype": st.sampled_from(["auto", "float32", "bfloat16"]),
            "kv-cache-memory-bytes": st.integers(1, 1 << 50),
            "sampling-defaults": st.fixed_dictionaries({}, optional={"temperature": st.floats(0, 2)}),
            "vllm": st.just({"extra-args": {"seed": 3, "load-format": "auto"}}),
        },
    )
)
def test_a_document_survives_the_form(settings):
    """Opening a profile's form and saving it changes nothing."""
    document = {"name": "chat", "model": {"path": "bundled"}, **settings}
    again = from_values(to_values(document))
    assert documents.content_hash(documents.load(again)) == documents.content_hash(documents.load(document))


def test_yaml_and_fields_show_the_same_document():
    draft = Draft.of({"name": "chat", "model": {"path": "bundled"}, "max-num-seqs": 8}, base=3)
    as_yaml = draft.seen_as("yaml")
    assert as_yaml is not None
    assert (as_yaml.base, as_yaml.view) == (3, "yaml")
    assert "max-num-seqs: 8" in as_yaml.yaml
    back = as_yaml.seen_as("fields")
    assert back is not None
    assert back.values["max-num-seqs"] == "8"


def test_yaml_that_the_fields_cannot_show_stays_yaml():
    """An unknown key would be lost by switching: it is refused instead."""
    draft = Draft(yaml="name: chat\nmodel: {path: bundled}\nmax-seqs: 8\n", view="yaml")
    assert draft.seen_as("fields") is None
    assert draft.seen_as("yaml") is draft
    with pytest.raises(ProfileError):
        Draft(yaml="a: [", view="yaml").seen_as("fields")


def test_what_a_browser_sends_is_kept_even_where_it_is_nonsense():
    draft = Draft.sent({"base": "x" * 99, "view": "?", "name": "chat", "yaml": "a: 1\r\nb: 2", "unknown": "1"})
    assert (draft.base, draft.view, draft.yaml) == (0, "fields", "a: 1\nb: 2")
    assert draft.values["name"] == "chat"


def test_a_model_that_is_not_there_stays_chosen_and_says_so():
    [model] = [
        f for g in groups({"model.path": "Gone-7B"}, [], ["Qwen3-8B"]) for f in g.fields if f.key == "model.path"
    ]
    assert [choice.value for choice in model.choices] == ["bundled", "Qwen3-8B", "Gone-7B"]
    assert [choice.problem for choice in model.choices] == ["", "", "missing"]


def test_problems_of_the_document_itself_are_shown_above_the_fields():
    unknown = Problem(field="max-seqs", value=8, message="There is no such setting.", remedy="Remove it.")
    inner = Problem(field="vllm.extra-args.host", value="x", message="Not allowed.", remedy="Remove it.")
    assert elsewhere([unknown, inner]) == [unknown]
    [item] = [f for g in groups({}, [unknown, inner], []) for f in g.fields if f.problems]
    assert item.key == "vllm.extra-args"


def test_what_an_empty_field_means_is_said_once_where_it_is_the_same_for_a_group():
    by_name = {group.name: group for group in groups({}, [], [])}
    sampling = by_name["Sampling defaults"]
    assert len(sampling.fields) > 1
    assert {item.empty for item in sampling.fields} == {sampling.empty}
    assert sampling.empty
    assert not by_name["Capacity"].empty
    assert any(item.empty for item in by_name["Capacity"].fields)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("sampling-defaults.top-p", "More than 0, up to 1"),
        ("max-num-seqs", "1 to 4,096"),
        ("kv-cache-memory-bytes", ""),
    ],
)
def test_limits_have_their_ends_and_grouped_digits(key, words):
    assert limits(BY_KEY[key]) == words


def test_labels_are_words():
    labels = {setting.key: label(setting) for setting in TYPED}
    assert labels["kv-cache-dtype"] == "KV cache dtype"
    assert labels["max-num-seqs"] == "Max sequences"
    assert labels["backends.moe"] == "MoE"
    assert labels["jit"] == "JIT"
    assert labels["speculative-config.method"] == "Draft method"
    assert labels["ray.host-ip"] == "Host IP"
    assert labels["model.path"] == "Model"
    assert not any("-" in text for text in labels.values())
