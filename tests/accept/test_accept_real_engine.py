"""`ingot accept` on a real engine: recorded, accepted, and refused once the oracle says otherwise."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from appliance.accept import soak
from appliance.accept.accept_command import accept
from appliance.accept.checks import checks_of
from appliance.accept.oracle_file import Entry, Oracle, RecordedModel, Recorder, write_oracle
from tests.running import engine, fetch, wait_for
from tests.tiny import write_checkpoint

QUICK = (
    "--needle-lengths",
    "200,480",
    "--needle-depths",
    "50",
    "--mixed",
    "2",
    "--rate",
    "10",
    "--soak",
    "2",
    "--seed",
    "1",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("accept") / "home"
    write_checkpoint(home / "models" / "tiny")
    document = {"schema": 1, "name": "tiny", "model": {"path": "tiny"}, "max-num-seqs": 8}
    profile = home / "profile.json"
    profile.write_text(json.dumps(document))
    (home / "other.json").write_text(json.dumps(document | {"max-num-seqs": 4}))
    with engine(home, "--profile", str(profile)) as (_, url):
        wait_for("the engine is ready", lambda: fetch(f"{url}/health")[0] == 200)
        yield home


@pytest.fixture(scope="module")
def oracle(home: Path) -> Path:
    (home / "prompts.jsonl").write_text('"one two three"\n"vier fünf sechs"\n')
    out = home / "oracle.json.gz"
    done = ingot(home, "record", out, "--prompts", home / "prompts.jsonl", "--output-tokens", 8, *QUICK[:4])
    assert done.exit_code == 0, done.stderr
    return out


@pytest.fixture(autouse=True)
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Often, in a short soak; and how steady it is says more of the machine than of the engine."""
    monkeypatch.setattr(soak, "LOOK_S", 0.1)
    monkeypatch.setattr(soak, "LEAST_ANSWERS", 1 << 30)


def ingot(home: Path, *arguments: object) -> Result:
    """It finds the running engine by the state folder."""
    options = [str(each) for each in arguments]
    if "--profile" not in options:
        options += ["--profile", str(home / "profile.json")]
    return CliRunner().invoke(accept, options, env={"INGOT_HOME": str(home), "INGOT_API_KEY": ""})


def told(done: Result, status: int) -> dict[str, Any]:
    assert done.exit_code == status, done.output
    return dict(json.loads(done.stdout))


def test_a_site_is_accepted(home: Path, oracle: Path):
    report = told(ingot(home, "--oracle", oracle, "--json", "-", *QUICK), 0)
    checks = {check["id"]: check for check in report["checks"]}
    assert report["verdict"] == "accepted"
    left_out = {name for name, check in checks.items() if check["ok"] is None}
    assert left_out == {"needle.found", "soak.drift"}  # the random model finds nothing, as when it was recorded
    assert checks["oracle.max"]["figure"] < 1e-4
    assert {cell["length"] for cell in report["needles"]} == {200, 480}
    facts = dict(report["environment"])
    assert facts["Profile"] == "tiny"
    assert facts["Model digest"].startswith("sha256:")
    assert "paged_attention" in facts["Backends"]


def test_a_half_nat_at_one_position_is_found(home: Path, oracle: Path):
    altered = home / "altered.json"
    content = json.loads(gzip.decompress(oracle.read_bytes()))
    content["entries"][1]["logprobs"][3] -= 0.5
    altered.write_text(json.dumps(content))
    report = told(ingot(home, "--oracle", altered, "--only", "oracle", "--json", "-"), 1)
    failed = {check["id"]: check for check in report["checks"] if check["ok"] is False}
    assert set(failed) == {"oracle.max", "oracle.mean"}
    failure = failed["oracle.max"]["failures"][0]
    assert (failure["prompt"], failure["position"]) == ("prompt-2", 3)
    assert failed["oracle.max"]["figure"] == pytest.approx(0.5, abs=1e-3)


def test_another_revision_of_the_profile_is_refused(home: Path):
    done = ingot(home, "--profile", home / "other.json", *QUICK)
    assert done.exit_code == 2
    assert "max-num-seqs" in done.stderr


def test_an_oracle_of_another_model_is_refused(home: Path, oracle: Path):
    other = home / "other-model.json"
    content = json.loads(gzip.decompress(oracle.read_bytes()))
    content["model"]["digest"] = "sha256:" + "0" * 64
    other.write_text(json.dumps(content))
    done = ingot(home, "--oracle", other, *QUICK)
    assert done.exit_code == 2
    assert str(other) in done.stderr


def test_an_oracle_of_transformers_is_met(home: Path):
    """The format holds what another program computes, and the engine agrees with it."""
    out = home / "transformers.json"
    write_oracle(out, of_transformers(home / "models" / "tiny", [[1, *range(60, 90)], [1, 70, 71, 200, 130]], tokens=6))
    report = told(ingot(home, "--oracle", out, "--only", "oracle", "--json", "-"), 0)
    checks = {check["id"]: check for check in report["checks"]}
    assert all(checks[name]["ok"] for name in checks_of("oracle"))
    assert checks["identity.oracle"]["ok"] is None  # another program does not know the digest


def of_transformers(folder: Path, prompts: list[list[int]], tokens: int) -> Oracle:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    entries = []
    for number, prompt in enumerate(prompts):
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(tokens):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            scores = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], -1)  # [len(ids) - 1, vocab]
        best = scores.topk(5)
        places = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        entries.append(
            Entry(
                id=f"prompt-{number}",
                prompt=prompt,
                tokens=ids[len(prompt) :],
                logprobs=[None, *scores[torch.arange(len(ids) - 1), ids[1:]].tolist()],
                top=[[], *([*zip(row, values, strict=True)] for row, values in places)],
            )
        )
    recorder = Recorder(program="a test", engine="transformers")
    told = RecordedModel(name="tiny", dtype="float32", tokenizer_text="", tokenizer_ids=[])
    return Oracle(recorded="2026-11-26T00:00:00Z", recorder=recorder, model=told, top=5, entries=entries)
