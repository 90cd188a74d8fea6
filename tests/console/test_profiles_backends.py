"""The profile's page says which backend each op gets, on this machine and on a GPU that is not here."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from appliance.explain.words import op_label
from appliance.hardware.known import KNOWN_GPUS
from console.profiles.form import groups
from console.profiles.store import ProfileStore
from console.profiles.words import plural
from kernels.catalogue import OPS
from tests.tiny import write_checkpoint


@pytest.fixture
def store(console):
    return ProfileStore(console.database)


@pytest.fixture
async def chat(store, home):
    write_checkpoint(home.models / "Tiny", dtype="bfloat16")
    await store.create({"name": "chat", "model": {"path": "Tiny"}}, author="ann")


def section(response) -> str:
    """The words of the section, as one line."""
    [found] = re.findall(r'<section[^>]*id="backends".*?</section>', response.text, re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", found)))


async def test_the_page_shows_the_backends_of_this_machine(client, chat):
    words = section(await client.get("/profiles/chat"))
    assert re.search(r"LlamaForCausalLM in (bfloat16|float32) on the CPU, with the native engine\.", words)
    assert re.search(r"RMS norm (cpp|torch) triton", words)


async def test_a_reason_that_holds_for_several_operations_is_given_once(client, chat):
    page = await client.get("/profiles/chat")
    reasons = re.findall(r'data-repeated="([^"]*)"', page.text)
    assert reasons
    for reason in map(unescape, reasons):
        assert section(page).count(reason) + section(page).count(plural(reason)) == 1
    assert section(page).count("triton") > 2


@pytest.mark.parametrize(
    ("of_one", "of_several"),
    [("runs only here", "run only here"), ("is cast", "are cast"), ("has 2", "have 2"), ("does not", "do not")],
)
def test_a_reason_of_several(of_one, of_several):
    assert plural(of_one) == of_several


async def test_what_the_model_needs_is_named(client, chat):
    words = section(await client.get("/profiles/chat"))
    assert "Paged attention backends.attention torch" in words


async def test_where_each_is_called_is_shown(client, store, home):
    """By shape, format and layers, where layers differ."""
    write_checkpoint(home.models / "Mixed", "qwen3_next", dtype="bfloat16", num_hidden_layers=4)
    await store.create({"name": "mixed", "model": {"path": "Mixed"}}, author="ann")
    page = await client.get("/profiles/mixed")
    [sites] = re.findall(r"<details[^>]*data-sites>.*?</details>", page.text, re.DOTALL)
    words = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", sites)))
    assert "delta_rule@2x16x4x24 float32 2 heads of 16, 4 of 24 0, 2 torch" in words
    assert re.search(r"paged_attention@4x32x2 \w+ 4 heads of 32, 2 of keys and values 1, 3 (cpp|torch)", words)


async def test_it_shows_those_of_any_known_gpu(client, chat):
    """Each is a choice of the select, chosen where it was asked for; what a cast needs is said."""
    for gpu in KNOWN_GPUS:
        page = await client.get("/profiles/chat", params={"gpu": gpu.name})
        assert page.status_code == 200
        assert f'<option value="{gpu.name}" selected>' in page.text
        assert f"on {gpu.name} ({gpu.architecture}, {gpu.memory_gib}.0 GiB)" in section(page)
    words = section(await client.get("/profiles/chat", params={"gpu": "RTX PRO 6000"}))
    assert "torch could run; triton" in words
    assert "A cast for sm_120" in words


async def test_a_fault_is_linked_to_its_source_and_a_refusal_is_said_at_the_top(client, store, home):
    (home.models / "big").mkdir(parents=True)
    config = {
        "architectures": ["DeepseekV32ForCausalLM"], "hidden_size": 7168, "num_attention_heads": 128,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048, "vocab_size": 129280,
    }  # fmt: skip
    (home.models / "big" / "config.json").write_text(json.dumps(config))
    await store.create({"name": "big", "model": {"path": "big"}, "engine": "vllm"}, author="ann")
    page = await client.get("/profiles/big", params={"gpu": "A100"})
    assert "data-no-backend" in page.text
    assert '<a href="https://github.com/vllm-project/vllm/issues/38006" target="_blank" rel="noreferrer">' in page.text
    assert "data-no-backend" not in (await client.get("/profiles/big", params={"gpu": "H200"})).text


async def test_a_choice_of_the_profile_is_marked_and_one_that_cannot_work_is_refused(client, store, chat):
    await store.save(
        "chat", {"name": "chat", "model": {"path": "Tiny"}, "backends": {"attention": "torch"}}, base=1, author="ann"
    )
    assert "torch profile" in section(await client.get("/profiles/chat"))
    await store.save(
        "chat", {"name": "chat", "model": {"path": "Tiny"}, "backends": {"attention": "triton"}}, base=2, author="ann"
    )
    assert "Paged attention has no backend here" in section(await client.get("/profiles/chat"))


@pytest.mark.parametrize(
    ("gpu", "said"),
    [("Voodoo 2", "Unknown GPU 'Voodoo 2'."), ("<script>", "Unknown GPU '<script>'.")],
)
async def test_a_gpu_that_nobody_knows_is_said(client, chat, gpu, said):
    page = await client.get("/profiles/chat", params={"gpu": gpu})
    assert page.status_code == 200
    assert said in section(page)
    assert "<script>'" not in page.text


async def test_without_a_model_the_page_says_what_is_missing(client, store):
    await store.create({"name": "lost", "model": {"path": "nowhere"}}, author="ann")
    page = await client.get("/profiles/lost", params={"gpu": "H100"})
    assert page.status_code == 200
    assert "nowhere" in section(page)


def test_every_op_has_words_of_its_own():
    labels = [op_label(op.name) for op in OPS]
    assert len(set(labels)) == len(labels)
    assert {"RMS norm", "Fused MoE", "FP8 linear", "DeepGEMM warmup"} <= set(labels)


def test_the_form_says_which_engine_a_backend_belongs_to():
    """Triton's is a word in both; FlashMLA is vLLM's alone."""
    shown = {item.key: item for group in groups({}, [], []) for item in group.fields}
    moe = {choice.value: choice.label for choice in shown["backends.moe"].choices}
    assert (moe["torch"], moe["triton"]) == ("torch (only native)", "triton")
    assert moe["flashinfer-cutlass"] == "flashinfer-cutlass (only vllm)"
    assert {choice.label for choice in shown["dtype"].choices} >= {"bfloat16", "float16"}
