"""`/v1/embeddings` and Ollama's paths, by a real engine: as sentence-transformers computes them, or a 4xx that names
the field."""

from __future__ import annotations

import array
import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import ollama
import openai
import pytest
import tokenizers
import torch
from transformers import AutoModel

from appliance.home import Home
from appliance.serving.ollama import answers as ollama_answers
from appliance.serving.openapi.answers import Embeddings
from tests.running import engine, fetch, wait_for
from tests.tiny import write_checkpoint

TEXTS = ["What is a cast?", "grüße", "a longer text, " * 20]
CONTEXT = 512


def write_embedding_model(folder: Path, pooling: dict[str, Any]) -> Path:
    """As Qwen3-Embedding is published: tensors without a prefix and without the head, a tokenizer that ends texts."""
    whole = write_checkpoint(folder.with_name("whole"), "qwen3")
    AutoModel.from_pretrained(whole, dtype=torch.float32).save_pretrained(folder)
    (folder / "config.json").write_text((whole / "config.json").read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(whole / "tokenizer.json"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text((whole / "tokenizer_config.json").read_text())
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **pooling}))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("embeddings") / "home"
    pooling = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}
    write_embedding_model(home / "models" / "tiny", pooling)
    profile = {"schema": 1, "name": "tiny", "model": {"path": "tiny"}, "max-num-seqs": 4, "max-num-batched-tokens": 64}
    (home / "profile.json").write_text(json.dumps(profile))
    Home.at(home).create()
    return home


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    with engine(home, "--profile", str(home / "profile.json")) as (_, url):
        wait_for("the engine is ready", lambda: fetch(f"{url}/health")[0] == 200)
        yield url


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
        yield http


@pytest.fixture(scope="module")
def expected(home: Path) -> torch.Tensor:
    """[3, 64]"""
    folder = home / "models" / "tiny"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        rows = [model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0, -1] for text in TEXTS]
    return torch.nn.functional.normalize(torch.stack(rows))


def embed(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post("/v1/embeddings", json=body)
    assert response.status_code == 200, response.text
    msgspec.json.decode(response.content, type=Embeddings)
    return dict(response.json())


def vectors(answer: dict[str, Any]) -> torch.Tensor:
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return torch.tensor([each["embedding"] for each in answer["data"]])


def test_they_are_those_of_sentence_transformers(http: httpx.Client, expected: torch.Tensor) -> None:
    """One text, several, and their token ids; the second time from the prefix cache."""
    several = embed(http, input=TEXTS, model="tiny")
    torch.testing.assert_close(vectors(several), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(vectors(embed(http, input=TEXTS[2])), expected[2:], atol=1e-5, rtol=1e-4)
    ids = [http.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS]
    assert all(each[-1] == 2 for each in ids)
    assert several["usage"] == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}
    torch.testing.assert_close(vectors(embed(http, input=ids)), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(vectors(embed(http, input=ids[1])), expected[1:2], atol=1e-5, rtol=1e-4)


def test_base64_and_fewer_dimensions(http: httpx.Client, expected: torch.Tensor) -> None:
    answer = embed(http, input=TEXTS[0], encoding_format="base64", dimensions=16)
    values = array.array("f", base64.b64decode(answer["data"][0]["embedding"]))
    wanted = torch.nn.functional.normalize(expected[0, :16], dim=0)
    torch.testing.assert_close(torch.tensor(values), wanted, atol=1e-5, rtol=1e-4)


def test_the_real_clients(url: str, expected: torch.Tensor) -> None:
    """OpenAI's asks for base64 unless it is told otherwise."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for given in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model="tiny", input=TEXTS, extra_body=given)
        found = torch.tensor([each.embedding for each in answer.data])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    other = ollama.Client(host=url)
    found = torch.tensor(other.embed(model="tiny", input=TEXTS, options={"temperature": 0}).embeddings)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    one = torch.tensor(other.embeddings(model="tiny", prompt=TEXTS[0]).embedding)
    torch.testing.assert_close(one, expected[0], atol=1e-5, rtol=1e-4)


def test_many_beside_an_answer(http: httpx.Client, expected: torch.Tensor) -> None:
    """More than run at once."""
    found = vectors(embed(http, input=TEXTS * 40))
    torch.testing.assert_close(found, expected.repeat(40, 1), atol=1e-5, rtol=1e-4)


def test_ollama_truncates_and_keeps_the_end(http: httpx.Client) -> None:
    """Unless it is not to."""
    long = "word " * 3000
    response = http.post("/api/embed", json={"model": "tiny", "input": long})
    msgspec.json.decode(response.content, type=ollama_answers.OllamaEmbeddings)
    assert response.json()["prompt_eval_count"] == CONTEXT - 1
    assert math.isclose(math.hypot(*response.json()["embeddings"][0]), 1, rel_tol=1e-5)
    response = http.post("/api/embeddings", json={"model": "tiny", "prompt": long})
    msgspec.json.decode(response.content, type=ollama_answers.OllamaEmbedding)
    refused = http.post("/api/embed", json={"model": "tiny", "input": long, "truncate": False})
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ""}, "input"),
        ({"input": ["x", ""]}, "input[1]"),
        ({"input": ["x", [[1]]]}, "input[1][0]"),
        ({"input": ["x", 1]}, "input"),
        ({"input": 7}, "input"),
        ({"input": [-1]}, "input[0]"),
        ({"input": [5, 512]}, "input[1]"),
        ({"input": [[5], [1 << 40]]}, "input[1][0]"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": ["x", "word " * 3000]}, "input[1]"),
        ({"input": [[5] * CONTEXT]}, "input"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "dimensions": 65}, "dimensions"),
        ({"input": "x", "dimensions": "8"}, "dimensions"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "encodingformat": "float"}, "encodingformat"),
        ({"input": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ],
)  # fmt: skip
def test_wrong_requests_name_the_field(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = http.post("/v1/embeddings", content=json.dumps(body))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_another_model(http: httpx.Client) -> None:
    assert http.post("/v1/embeddings", json={"input": "x", "model": "other"}).status_code == 404
    assert http.post("/api/embed", json={"input": "x", "model": "other"}).status_code == 404


def test_it_generates_all_the_same(http: httpx.Client) -> None:
    """A model without a head takes its embedding table for one."""
    answer = http.post("/v1/completions", json={"prompt": [7, 8], "max_tokens": 3, "ignore_eos": True})
    assert answer.json()["usage"]["completion_tokens"] == 3
