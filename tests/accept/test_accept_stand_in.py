"""`ingot accept` against a stand-in: a sound one is accepted, and each spoilt one fails the check of what is wrong with
it, and no other."""

from __future__ import annotations

import html.parser
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from appliance.accept import mixed, soak
from appliance.accept.accept_command import accept
from appliance.accept.checks import CHECKS, checks_of
from appliance.accept.tolerances import TOLERANCES
from tests.accept.stand_in import Server
from tests.running import INGOT, free_port

QUICK = ("--mixed", 0.6, "--rate", 100, "--soak", 0.7, "--seed", 3, "--needle-lengths", "160,400", "--json", "-")
NEEDLES_FOUND = ("--needle-score", 1)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds instead of minutes; and a busy machine is no slower server."""
    monkeypatch.setattr(soak, "LOOK_S", 0.05)
    monkeypatch.setattr(soak, "DRIFT", 30.0)
    monkeypatch.setattr(soak, "LEAST_ANSWERS", 1)
    monkeypatch.setattr(mixed, "SETTLE_S", 0.4)
    monkeypatch.setattr(mixed, "SETTLE_STEP_S", 0.1)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def run(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(accept, [str(each) for each in arguments], env={"INGOT_API_KEY": "", **environment})


def told(result: Result, status: int) -> dict[str, Any]:
    assert result.exit_code == status, result.output
    return dict(json.loads(result.stdout))


def by_id(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["id"]: check for check in report["checks"]}


def failed(report: dict[str, Any]) -> set[str]:
    return {check["id"] for check in report["checks"] if check["ok"] is False}


def record(server: Server, folder: Path, *options: object) -> Path:
    out = folder / "oracle.json"
    (folder / "prompts.jsonl").write_text('"The first prompt"\n"A second one, a little longer"\n')
    result = run("record", out, "--url", server.url, "--prompts", folder / "prompts.jsonl", "--seed", 1,
                 "--needle-lengths", "160,400", *options)  # fmt: skip
    assert result.exit_code == 0, result.output
    return out


def test_a_sound_server_is_accepted_and_every_check_is_in_the_report(server: Server, tmp_path: Path):
    oracle = record(server, tmp_path)
    page = tmp_path / "report.html"
    report = told(run("--url", server.url, "--oracle", oracle, "--html", page, *QUICK), 0)
    checks = by_id(report)
    assert report["verdict"] == "accepted"
    assert list(checks) == list(CHECKS)
    # What this stand-in cannot be asked: it has no profile here, and its memory is not seen.
    left_out = {name for name, check in checks.items() if check["ok"] is None}
    assert left_out == {"identity.profile", "identity.digest", "soak.memory"}
    assert all(checks[name]["reason"] for name in left_out)
    assert all(cell["found"] and cell["expected_found"] for cell in report["needles"])
    assert {cell["length"] for cell in report["needles"]} == {160, 400}
    assert report["oracles"][0]["prompts"] == 2
    assert len(report["soak"]) >= 1
    assert told(run("--url", server.url, "--oracle", oracle, "--strict", *QUICK), 1)["verdict"] == "not accepted"


@pytest.mark.parametrize(
    ("spoilt", "checks", "also"),
    [
        ("load", {"needle.batch", "mixed.same", "mixed.stops", "soak.replay"}, set()),
        ("cache", {"needle.warm"}, set()),
        ("forgets", {"needle.found"}, set()),
        ("goes-on", {"mixed.stops"}, set()),
        ("schema", {"mixed.structured", "mixed.tools"}, set()),
        ("cut", {"mixed.form", "soak.form"}, {"mixed.same", "mixed.stops", "soak.replay"}),
        ("leak", {"mixed.aborts"}, set()),
    ],
)
def test_a_spoilt_server_fails_the_check_of_what_is_wrong(spoilt: str, checks: set[str], also: set[str]):
    with Server(spoilt) as server:
        server.pause_s = 0.03 if spoilt == "load" else 0.0  # so that requests overlap
        section = {check.partition(".")[0] for check in checks}
        report = told(run("--url", server.url, *NEEDLES_FOUND, "--only", ",".join(section), *QUICK), 1)
    assert report["verdict"] == "not accepted"
    assert checks <= failed(report) <= checks | also
    named = [by_id(report)[check] for check in checks if check != "mixed.aborts"]
    assert all(check["failures"] and check["figure"] != check["bound"] for check in named)


@pytest.mark.parametrize(
    ("spoilt", "check"),
    [
        ("restart", "soak.restarts"),
        ("down", "soak.restarts"),
        ("down", "soak.errors"),
        ("cache", "soak.replay"),
        ("stuck", "soak.stuck"),
    ],
)
def test_a_soak_finds_what_time_brings(spoilt: str, check: str):
    with Server(spoilt) as server:
        report = told(run("--url", server.url, "--only", "soak", "--timeout", 1, *QUICK), 1)
    assert check in failed(report)
    assert by_id(report)[check]["failures"]


def test_a_soak_finds_a_server_that_becomes_slow(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(soak, "DRIFT", 1.5)
    server.pause_s = 0.02
    slower = threading.Timer(0.8, lambda: setattr(server, "pause_s", 0.15))
    slower.start()
    report = told(run("--url", server.url, "--only", "soak", "--concurrency", 16, *QUICK, "--soak", 2), 1)
    slower.join()
    assert "soak.drift" in failed(report)
    assert by_id(report)["soak.drift"]["figure"] > 1.5


@pytest.mark.parametrize(
    ("refused", "absent", "left_out"),
    [
        (("echo",), (), {"oracle.max", "oracle.mean", "oracle.kl", "oracle.top1"}),
        (("logprobs",), (), {*checks_of("oracle")}),
        (("return_tokens_as_token_ids",), (), {*checks_of("oracle")}),
        ((), ("/tokenize",), {*checks_of("oracle"), *checks_of("needle")}),
        (("messages",), (), {"mixed.structured", "mixed.tools"}),
        (("tools",), (), {"mixed.tools"}),
        ((), ("/metrics",), {"mixed.aborts"}),
        (("stream_options", "cache_salt", "ignore_eos"), (), set()),
    ],
)
def test_what_cannot_be_asked_is_not_run_and_says_why(
    server: Server, tmp_path: Path, refused: tuple[str, ...], absent: tuple[str, ...], left_out: set[str]
):
    oracle = record(server, tmp_path)
    server.refused, server.absent = set(refused), set(absent)
    only = ("--only", "oracle,needle,mixed")
    report = told(run("--url", server.url, "--oracle", oracle, *only, *QUICK), 0)
    reasons = {check["id"]: check["reason"] for check in report["checks"] if check["ok"] is None}
    assert left_out == reasons.keys() - {"identity.profile", "identity.digest"}
    named = {name.strip("/") for name in (*refused, *absent)} - {"messages"}
    assert all(any(name in reasons[check] for name in named) for check in left_out if named)


def test_a_server_that_is_no_ingot(tmp_path: Path):
    """It tells neither digest nor dtype, and has no state."""
    with Server(absent=("/appliance/state",)) as server:
        server.model = {"id": "m", "max_model_len": 1024, "owned_by": "vllm"}
        refused = run("record", tmp_path / "oracle.json", "--url", server.url, "--no-needles")
        assert refused.exit_code == 2
        assert "--dtype" in refused.stderr
        oracle = record(server, tmp_path, "--dtype", "float32")
        report = told(run("--url", server.url, "--oracle", oracle, *QUICK), 0)
    left_out = {check["id"] for check in report["checks"] if check["ok"] is None}
    assert left_out == {*checks_of("identity"), "soak.restarts", "soak.memory"}
    assert by_id(report)["oracle.max"]["bound"] == TOLERANCES["bfloat16"].max  # what it computes in is not known
    assert dict(report["environment"])["Engine"] == "vllm"


def test_half_precision_without_logprobs_is_not_compared(server: Server):
    """A tie could not be told from a fault."""
    server.model["dtype"] = "bfloat16"
    server.refused = {"logprobs"}
    report = by_id(told(run("--url", server.url, "--only", "mixed", *QUICK), 0))
    assert report["mixed.same"]["ok"] is None
    assert report["mixed.answered"]["ok"]


def _altered(oracle: Path, place: str, change: Any) -> Path:
    told = json.loads(oracle.read_text())
    entry = told["entries"][1]
    match place:
        case "logprob":
            entry["logprobs"][4] += change
        case "top":
            entry["top"][4][0][0], entry["top"][4][1][0] = entry["top"][4][1][0], entry["top"][4][0][0]
        case "token":
            entry["tokens"][2] += change
        case "needle":
            told["needles"][0]["expected"] = change
    out = oracle.with_name("altered.json")
    out.write_text(json.dumps(told))
    return out


@pytest.mark.parametrize(
    ("place", "change", "check", "position"),
    [
        ("logprob", -0.01, "oracle.max", 4),
        ("top", None, "oracle.top1", 4),
        ("token", 1, "oracle.decode", 32),
    ],
)
def test_an_oracle_that_says_otherwise_is_not_met(
    server: Server, tmp_path: Path, place: str, change: Any, check: str, position: int
):
    """The failure names the prompt, the position, what was expected and what came."""
    oracle = _altered(record(server, tmp_path), place, change)
    report = told(run("--url", server.url, "--oracle", oracle, "--only", "oracle", *QUICK), 1)
    assert check in failed(report)
    failure = by_id(report)[check]["failures"][0]
    assert (failure["prompt"], failure["position"]) == ("prompt-2", position)
    assert failure["expected"] != failure["got"]


def test_tolerances_can_be_given(server: Server, tmp_path: Path):
    oracle = _altered(record(server, tmp_path), "logprob", -0.01)
    wider = ("--tolerance", "max=0.02", "--tolerance", "mean=0.01")
    report = told(run("--url", server.url, "--oracle", oracle, "--only", "oracle", *wider, *QUICK), 0)
    assert by_id(report)["oracle.max"]["bound"] == 0.02
    assert by_id(report)["oracle.max"]["figure"] == pytest.approx(0.01)


def test_a_model_that_finds_less_than_the_oracles_is_not_accepted(server: Server, tmp_path: Path):
    """Whether it was served correctly is another check, which it passes."""
    oracle = record(server, tmp_path)
    server.spoilt.add("forgets")
    report = told(run("--url", server.url, "--oracle", oracle, "--only", "needle", *QUICK), 1)
    assert failed(report) == {"needle.found"}
    assert by_id(report)["needle.served"]["ok"]


def test_a_weak_model_is_no_fault_of_the_site(tmp_path: Path):
    with Server("forgets") as server:
        oracle = record(server, tmp_path)
        report = told(run("--url", server.url, "--oracle", oracle, "--only", "needle", *QUICK), 0)
    assert by_id(report)["needle.found"]["ok"] is None
    assert not any(cell["found"] for cell in report["needles"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda server: server.model.update(digest="sha256:2"),
        lambda server: server.state.update(state="starting"),
        lambda server: server.model.update(running=False),
        lambda server: server.refused.add("prompt"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_checked(server: Server, tmp_path: Path, spoil: Any):
    oracle = record(server, tmp_path)
    spoil(server)
    result = run("--url", server.url, "--oracle", oracle, *QUICK)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_an_oracle_of_another_tokenizer_is_refused(server: Server, tmp_path: Path):
    oracle = record(server, tmp_path)
    told = json.loads(oracle.read_text())
    told["model"] |= {"digest": "", "tokenizer_ids": [1, 2, 3]}
    oracle.write_text(json.dumps(told))
    result = run("--url", server.url, "--oracle", oracle, *QUICK)
    assert result.exit_code == 2
    assert str(oracle) in result.stderr


def test_another_profile_or_model_is_refused(server: Server, tmp_path: Path):
    profile = tmp_path / "profile.yaml"
    for name, served in (("q", "m"), ("p", "other")):
        document = {"schema": 1, "name": name, "model": {"path": "tiny"}, "served-model-name": served}
        profile.write_text(json.dumps(document))
        result = run("--url", server.url, "--profile", profile, *QUICK)
        assert result.exit_code == 2
        assert repr(name if served == "m" else served) in result.stderr


@pytest.mark.parametrize("lengths", ["20", "400,1020"])
def test_needles_that_do_not_fit_are_refused(server: Server, tmp_path: Path, lengths: str):
    for command in ((), ("record", tmp_path / "oracle.json")):
        result = run(*command, "--url", server.url, "--needle-lengths", lengths)
        assert result.exit_code == 2
        assert "--needle-lengths" in result.stderr


def test_nobody_to_ask(tmp_path: Path):
    for arguments in ((), ("--url", f"http://127.0.0.1:{free_port()}")):
        assert run(*arguments).exit_code == 2


def test_the_time_budget_ends_it_and_what_is_left_is_incomplete(server: Server):
    report = told(run("--url", server.url, "--only", "mixed,soak", *QUICK, "--budget", 3, "--soak", 60), 1)
    assert report["verdict"] == "incomplete"
    cut_off = {check["id"] for check in report["checks"] if check["cut_off"]}
    assert cut_off == {*checks_of("soak")}
    assert by_id(report)["mixed.answered"]["ok"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_report_that_says_so(server: Server, tmp_path: Path, number: signal.Signals):
    page = tmp_path / "report.html"
    command = [*INGOT, "accept", "--url", server.url, "--only", "mixed,soak", "--mixed", "1", "--json", "-"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INGOT_")}
    environment["INGOT_HOME"] = str(tmp_path)
    with subprocess.Popen([*command, "--html", page], stdout=subprocess.PIPE, env=environment) as process:
        for _ in range(3000):
            if len(server.bodies) > 150:
                break
            threading.Event().wait(0.01)
        process.send_signal(number)
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    report = json.loads(out)
    assert report["interrupted"]
    assert report["verdict"] == "incomplete"
    assert by_id(report)["mixed.form"]["ok"]
    assert by_id(report)["soak.errors"]["cut_off"]
    assert by_id(report)["soak.errors"]["detail"]
    assert "incomplete" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--only", "oracle,all"], "all"),
        (["--tolerance", "max"], "max"),
        (["--tolerance", "max=-1"], "max=-1"),
        (["--tolerance", "most=1"], "most=1"),
        (["--tolerance", "top1=2"], "top1=2"),
        (["--needle-lengths", "a"], "a"),
        (["--needle-depths", "101"], "101"),
        (["--needle-score", "2"], "2"),
        (["--rate", "0"], "0"),
        (["--budget", "nan"], "nan"),
        (["--dtype", "int3"], "int3"),
        (["--url", "ftp://x"], "ftp://x"),
        (["--oracle", "absent.json"], "absent.json"),
        (["--html", "-"], "--html -"),
        (["--profile", "absent.yaml"], "absent.yaml"),
        (["--seed", "1", "record", "x.json"], "--seed"),
    ],
)
def test_a_bad_flag_is_refused_with_its_value_before_anything_is_asked(
    server: Server, arguments: list[str], value: str
):
    result = run("--url", server.url, *arguments) if "record" not in arguments else run(*arguments)
    assert result.exit_code == 2
    assert value in result.stderr
    assert server.bodies == []


class Page(html.parser.HTMLParser):
    """Counts elements, and what would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [str(value) for name, value in attributes if name in ("src", "href")]


def test_the_page_needs_nothing_else_and_escapes_what_servers_say(server: Server, tmp_path: Path):
    server.model["id"] = "<script>m</script>"
    out = tmp_path / "report.html"
    result = run("--url", server.url, "--html", out, *QUICK[:-2])
    assert result.exit_code == 0, result.output
    assert "mixed.answered" in result.stdout
    page = Page(out.read_text())
    assert "script" not in page.tags
    assert page.fetched == []
    assert all(check in out.read_text() for check in CHECKS if not check.startswith("identity.oracle"))


def test_the_key_is_sent(server: Server, tmp_path: Path):
    (tmp_path / "key").write_text("from-file\n")
    run("--url", server.url, "--key-file", tmp_path / "key", "--only", "needle", *QUICK)
    assert server.keys == {"Bearer from-file"}


def test_it_imports_neither_torch_nor_the_console():
    code = "import appliance.accept.accept_command, sys; print({'torch', 'console', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
