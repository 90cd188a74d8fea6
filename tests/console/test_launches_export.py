"""One launch as a file to send to support: all that it left, without any secret, and never whole in memory."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
import tracemalloc
import zipfile

import msgspec
import pytest
import yaml

from appliance.launches.catalogue import Catalogue
from appliance.protocol import Diagnosis, Event, EvidenceLine, Fix, LogLines
from console.hardware.machines import Machines
from console.launches import log_excerpt
from console.launches.export import export
from console.launches.follow_up import write_follow_up
from console.profiles.inspection import Inspector
from tests.console.launch_folders import failed_launch
from tests.console.launch_kinds import FORCED, document, gallery, hung

ID = "20261120-110000-bbbb"
SECRET = "S3CR3Tvalue"
FILES = {
    "engine.log", "events.jsonl", "launch.json", "profile.yaml", "diagnosis.json", "stacks.txt", "follow-up.json",
    "findings.json", "effective.json", "hardware.json", "versions.json", "README.txt",
}  # fmt: skip


def exported(home, launch_id=ID):
    folder = Catalogue(home).find(launch_id)
    machines = Machines(home)
    content = b"".join(export(home, folder, machines, Inspector(home, machines=machines)))
    archive = zipfile.ZipFile(io.BytesIO(content))
    assert archive.testzip() is None
    return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.mark.parametrize("clock", [0.0, 4_500_000_000.0])
def test_a_machine_whose_clock_is_wrong_can_export(clock, home, monkeypatch):
    """A zip file knows neither 1970 nor the year 2112."""
    failed_launch(home, ID)
    moment = time.gmtime(clock)
    monkeypatch.setattr(time, "localtime", lambda *_: moment)
    assert set(exported(home)) >= {"engine.log", "README.txt"}


@pytest.fixture
def leaky(home, monkeypatch):
    """A launch whose every file holds secrets of several kinds."""
    launch = hung(home, ID)
    document(
        launch,
        vllm={"environment": {"HF_TOKEN": SECRET}, "extra-args": {"api-key": SECRET}},
        note=f"https://me:{SECRET}@host/",
    )
    launch.log(
        f"\x1b[33mINFO\x1b[0m environment: {{'HF_TOKEN': '{SECRET}'}}",
        f"Authorization: Bearer {SECRET}",
        f"http://127.0.0.1:8080/setup?code={SECRET}",
        "-----BEGIN PRIVATE KEY-----",
        SECRET,
        "-----END PRIVATE KEY-----",
        "the console says known-console-token, the environment known-from-environment",
        "the last line",
    )
    launch.diagnose(
        Diagnosis(
            summary=f"The hub refused the token={SECRET}.",
            evidence=(EvidenceLine(2, f"Authorization: Bearer {SECRET}"),),
            fix=Fix(
                text="Give it one.", command=f"export HF_TOKEN={SECRET}", patch={"vllm.environment.HF_TOKEN": SECRET}
            ),
        )
    )
    launch.record.findings.append(
        msgspec.structs.replace(FORCED, evidence=(f"OPENAI_API_KEY={SECRET}",), value=f"sk-{SECRET}")
    )
    launch.record.exit_status = f"password: {SECRET}"
    launch.save()
    stacks = launch.folder / "stacks.txt"
    stacks.write_text(f"Process 7: python -m x --api-key {SECRET}\n" + stacks.read_text())
    write_follow_up(home, ID, "fix", launch="20261120-120000-cccc", profile=f"sk-{SECRET}", revision="r8")
    home.console_token.write_text("known-console-token\n")
    monkeypatch.setenv("MY_API_KEY", "known-from-environment")
    return launch


def test_all_that_belongs_to_a_launch_is_in_it_and_no_secret(home, leaky):
    files = exported(home)
    assert files.keys() == FILES
    for name, text in files.items():
        assert SECRET not in text, name
        assert "known-console-token" not in text, name
        assert "known-from-environment" not in text, name
    for name in (
        "engine.log",
        "events.jsonl",
        "launch.json",
        "profile.yaml",
        "diagnosis.json",
        "stacks.txt",
        "follow-up.json",
    ):
        assert "<removed: " in files[name], name
    assert "the last line" in files["engine.log"]
    assert "all_reduce" in files["stacks.txt"]


def test_what_was_a_document_is_one_still(home, leaky):
    """Events, record, profile and the rest can be read by a program, and say what they said."""
    files = exported(home)
    events = [msgspec.json.decode(line, type=Event) for line in files["events.jsonl"].splitlines()]
    assert [event.sequence for event in events] == list(range(1, leaky.sequence + 1))
    assert all(not event.body.lines for event in events if isinstance(event.body, LogLines))
    assert json.loads(files["launch.json"])["state"] == "hung"
    assert yaml.safe_load(files["profile.yaml"])["model"] == {"path": "Qwen3-8B"}
    assert json.loads(files["findings.json"])[0]["id"] == FORCED.id
    assert json.loads(files["versions.json"])["libraries"]["msgspec"]
    assert json.loads(files["hardware.json"])["machine"]["inventory"]["host"]["cores"] >= 1
    assert json.loads(files["effective.json"])


def test_the_manifest_says_what_is_in_it_and_what_was_taken_out(home, leaky):
    text = exported(home)["README.txt"]
    for name in FILES - {"README.txt"}:
        assert f"{name} (" in text
    assert "authorization header" in text
    assert "1 private key" in text
    assert re.findall(r"^[A-Z][A-Z ]+$", text, re.MULTILINE) == ["CONTENTS", "REMOVED SECRETS", "NEVER INCLUDED"]
    assert text.partition("NEVER INCLUDED")[2].strip()


def test_the_manifest_says_whether_the_log_is_whole(home, monkeypatch):
    launch = hung(home, ID)
    (launch.folder / "engine.log").write_text("INFO one line of many\n" * 1000)
    assert "engine.log (22,000 bytes)" in exported(home)["README.txt"]
    monkeypatch.setattr(log_excerpt, "WHOLE_BYTES", 10_000)
    for name in ("BEGINNING_BYTES", "AROUND_BYTES", "END_BYTES"):
        monkeypatch.setattr(log_excerpt, name, 1_000)
    files = exported(home)
    assert f"engine.log ({len(files['engine.log']):,} bytes, shortened from 22,000)" in files["README.txt"]


def test_a_launch_of_every_kind_and_a_damaged_one_can_be_exported(home):
    """Whatever is missing, torn or not readable: the rest comes."""
    ids = gallery(home)
    torn = home.launch(ids["failed"])
    (torn / "launch.json").write_text('{"id": "2026, "api_key": "' + SECRET)
    (torn / "events.jsonl").write_text("not json HF_TOKEN=" + SECRET + "\n" + '{"launch": 7')
    (torn / "profile.yaml").write_text("{: [" + f"\npassword: {SECRET}")
    empty = home.launch("20261121-000000-eeee")
    empty.mkdir()
    for launch_id in (*ids.values(), empty.name):
        files = exported(home, launch_id)
        assert "README.txt" in files
        assert SECRET not in "".join(files.values())


def test_a_log_that_is_too_large_is_sent_in_part(home, monkeypatch):
    """Beginning, what surrounds the first error, end; each gap says its lines, so that numbers still hold."""
    monkeypatch.setattr(log_excerpt, "WHOLE_BYTES", 100_000)
    for name in ("BEGINNING_BYTES", "AROUND_BYTES", "END_BYTES"):
        monkeypatch.setattr(log_excerpt, name, 5_000)
    launch = hung(home, ID)
    lines = [f"INFO line {number} of many" for number in range(1, 20_001)]
    lines[9_999] = "(EngineCore pid=7) ERROR ValueError: the first error"
    (launch.folder / "engine.log").write_text("\n".join(lines) + "\n")
    text = exported(home)["engine.log"]
    assert len(text) < 30_000
    assert text.startswith("INFO line 1 of many\n")
    assert text.endswith("INFO line 20000 of many\n")
    number = 0
    for line in text.splitlines():
        if line.startswith("[Ingot left out lines "):
            number = int(line.split(" to ")[1].split(":")[0].replace(",", ""))
            continue
        number += 1
        assert line == lines[number - 1]
    assert "the first error" in text
    assert text.count("[Ingot left out") == 2


def test_memory_does_not_grow_with_the_log(home):
    """Four megabytes go through in one and a half."""
    launch = hung(home, ID)
    with (launch.folder / "engine.log").open("w") as file:
        for number in range(25_000):
            file.write(f"INFO 11-20 10:00:00 [loggers.py:127] step {number}: {os.urandom(48).hex()}\n")
    folder = Catalogue(home).find(ID)
    machines = Machines(home)
    exported(home)  # what is imported on the way is not counted
    tracemalloc.start()
    size = sum(len(chunk) for chunk in export(home, folder, machines, Inspector(home, machines=machines)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 1 << 20
    assert peak < 3 << 19


async def test_the_page_offers_it_and_it_can_be_taken_home(client, home, leaky):
    text = (await client.get(f"/launches/{ID}")).text
    assert f'href="/launches/{ID}/export"' in text
    answer = await client.get(f"/launches/{ID}/export")
    assert answer.headers["content-type"] == "application/zip"
    assert f"ingot-launch-{ID}.zip" in answer.headers["content-disposition"]
    assert set(zipfile.ZipFile(io.BytesIO(answer.content)).namelist()) == FILES
    assert (await client.get("/launches/20260101-000000-0000/export")).status_code == 404


def run(home, *arguments):
    command = [sys.executable, "-c", "from console.launches.launches_command import launches; launches()", *arguments]
    return subprocess.run(command, env={**os.environ, "INGOT_HOME": str(home.root)}, capture_output=True, timeout=60)


def test_the_command_writes_the_same_file(home, leaky, tmp_path):
    """Into a new file or to standard output; it never writes over one."""
    out = tmp_path / "for-support.zip"
    done = run(home, "export", ID, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert set(zipfile.ZipFile(out).namelist()) == FILES
    again = run(home, "export", "latest", "--out", str(out))
    assert again.returncode == 1
    assert str(out).encode() in again.stderr
    piped = run(home, "export", "latest", "--out", "-")
    assert set(zipfile.ZipFile(io.BytesIO(piped.stdout)).namelist()) == FILES
    unknown = run(home, "export", "20260101-000000-0000")
    assert unknown.returncode == 1
    assert ID.encode() in unknown.stderr


def test_the_command_lists_launches(home):
    gallery(home)
    text = run(home, "list").stdout.decode()
    for word in ("refused", "failed while serving", "hung", "cut off", "given up", "stopped"):
        assert word in text
    rows = run(home, "list", "--json", "-n", "3").stdout.splitlines()
    assert [json.loads(row)["id"] for row in rows] == Catalogue(home).ids()[:3]
