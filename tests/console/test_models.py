"""The models page, over real model folders, whole and damaged."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest

from appliance.profile.schema import BUNDLED_MODEL
from console.models.service import InstalledModels
from tests.tiny import write_checkpoint


def by_name(home):
    return {model.name: model for model in InstalledModels(home).models()}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_whole_model(home, family):
    """Architecture, parameters, dtype, size and context come from its own files."""
    write_checkpoint(home.models / "Tiny", family=family)
    model = by_name(home)["Tiny"]
    assert model.status == "native"
    assert model.problem is None
    assert model.facts.architecture.lower().startswith(family)
    assert model.facts.dtype == "float32"
    assert model.facts.size == 4 * model.facts.parameters
    assert model.facts.context_length > 0


def test_the_bundled_model_comes_first(home):
    """It is there without a models folder, and can be used."""
    models = InstalledModels(home).models()
    assert models[0].name == BUNDLED_MODEL
    assert models[0].status == "native"


def remove_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def truncate_weights(folder):
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 100)


def junk_config(folder):
    (folder / "config.json").write_bytes(b"{\xff\x00")


def remove_config(folder):
    (folder / "config.json").unlink()


def link_out(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/etc/passwd")


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def dangle(folder):
    shutil.rmtree(folder)
    folder.symlink_to(folder.parent / "gone")


def loop(folder):
    shutil.rmtree(folder)
    folder.symlink_to(folder)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (remove_tokenizer, "tokenizer.json"),
        (truncate_weights, "model.safetensors"),
        (junk_config, "config.json"),
        (remove_config, "config.json"),
        (link_out, "outside the models folder"),
        (empty, "config.json"),
        (dangle, "Broken"),
        (loop, "cannot be opened"),
    ],
)
async def test_a_damaged_folder_is_a_row_with_its_problem(client, home, damage, says):
    """The page stands, the other models are there, and the row says what is missing and what to do."""
    write_checkpoint(home.models / "Good")
    write_checkpoint(home.models / "Broken")
    damage(home.models / "Broken")
    answer = await client.get("/models")
    assert answer.status_code == 200
    assert "Good" in answer.text
    assert "model-damaged" in answer.text
    model = by_name(home)["Broken"]
    assert model.status == "damaged"
    assert says in f"{model.problem.message} {model.problem.evidence}"
    assert model.problem.fix.text


def test_a_model_for_another_engine(home):
    """Whole, but not one of ours: it says so, and still tells what it is."""
    write_checkpoint(home.models / "Other")
    path = home.models / "Other" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["GptOssForCausalLM"]}))
    model = by_name(home)["Other"]
    assert model.status == "other engine"
    assert "GptOssForCausalLM" in model.problem.message
    assert model.facts.architecture == "GptOssForCausalLM"
    assert model.facts.context_length
    assert model.facts.parameters


def test_what_is_a_model_folder(home):
    """Folders, folders in a group, stray model files; not what is hidden."""
    write_checkpoint(home.models / "Qwen" / "Qwen3-8B")
    write_checkpoint(home.models / ".cache")
    (home.models / "model.gguf").write_bytes(b"GGUF")
    (home.models / "notes.txt").write_text("x")
    models = by_name(home)
    assert set(models) == {BUNDLED_MODEL, "Qwen/Qwen3-8B", "model.gguf"}
    assert "GGUF" in models["model.gguf"].problem.message


def test_only_what_changed_is_read_again(home):
    """A second look costs next to nothing; a file that came or changed is seen."""
    write_checkpoint(home.models / "Tiny")
    installed = InstalledModels(home)
    first = installed.models()
    assert [a is b for a, b in zip(first, installed.models(), strict=True)] == [True, True]
    tokenizer = (home.models / "Tiny" / "tokenizer.json").read_bytes()
    (home.models / "Tiny" / "tokenizer.json").unlink()
    assert installed.models()[1].status == "damaged"
    (home.models / "Tiny" / "tokenizer.json").write_bytes(tokenizer)
    assert installed.models()[1].status == "native"
    shutil.rmtree(home.models / "Tiny")
    assert len(installed.models()) == 1


async def test_the_page(client, home):
    """What each model is, how to make a profile of it, and how to add one; hostile names are text."""
    write_checkpoint(home.models / "Tiny")
    (home.models / "<script>alert(1)<").mkdir()
    text = (await client.get("/models")).text
    assert "model-native" in text
    assert 'href="/profiles/-/new?model=Tiny"' in text
    assert str(home.models) in text
    assert "<script>alert" not in text
    begun = time.process_time()
    await client.get("/models")
    assert time.process_time() - begun < 1
