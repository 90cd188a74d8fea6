"""A launch's page tells every kind of end apart, and says what can be done about it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from appliance.engine_process.deadlines import FLOORS_S
from appliance.engine_process.stacks import dump_stacks, has_stacks
from appliance.launches import stacks
from appliance.launches.catalogue import Catalogue
from appliance.protocol import (
    Diagnosis,
    DiagnosisReport,
    Event,
    Finding,
    Fix,
    LaunchRecord,
    PhaseChange,
    ProcessEnd,
    ProcessEnded,
    Progress,
    Severity,
    State,
)
from appliance.vllm import deadlines as vllm_deadlines
from console.db.models import Launch
from console.engine_control.base import EngineStatus
from console.launches import fixes
from console.launches.follow_up import read_follow_up, write_follow_up
from console.launches.outcome import FACES, Kind, kind_of, sentence
from console.launches.timeline import timeline
from console.launches.waiting import expectation
from console.profiles.store import ProfileStore
from tests.console.launch_folders import WrittenLaunch, failed_launch, ready_launch
from tests.console.launch_kinds import CONTEXT, FORCED, KINDS, STACKS, TOKENIZER, document, gallery, refused, starting
from tests.console.listening import message_with
from tests.running import wait_for
from tests.tiny import write_checkpoint

GOOD, BAD, NOW = "20261120-100000-aaaa", "20261120-110000-bbbb", "20261120-120000-cccc"

FIGURES = {
    "refused": ("210 ms",),
    "failed": ("4.2 s", "graphs"),
    "failed-vllm": ("21.0 s", "compile"),
    "failed-serving": ("1 h 30 min",),
    "hung": ("2 min 04 s", "graphs"),
    "crash-loop": (),
    "cut-off": ("2 h 00 min",),
    "stopped": ("10 min 00 s",),
    "stopped-starting": ("1.2 s",),
}
"""What the sentence names: how long it took, how long it served, the phase."""


def text_of(response):
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", response.text)))


@pytest.fixture
def engine_runs(control):
    control.present = EngineStatus(running=True, who="process 1")


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_end_has_its_sentence(client, home, kind):
    page = unescape((await client.get(f"/launches/{gallery(home)[kind]}")).text)
    assert f'data-kind="{"failed" if kind == "failed-vllm" else kind}"' in page
    sentence = re.search(r'<h2 class="launch-sentence">(.+?)</h2>', page)
    assert sentence is not None
    assert [figure for figure in FIGURES[kind] if figure not in sentence[1]] == []
    assert "data-ago=" in page


def test_every_kind_has_a_face_and_is_told_from_the_record(home):
    kinds = {
        kind: kind_of(Catalogue(home).find(launch_id).record(), runs=False) for kind, launch_id in gallery(home).items()
    }
    assert kinds == {**{kind: Kind(kind) for kind in KINDS if kind != "failed-vllm"}, "failed-vllm": Kind.FAILED}
    assert FACES.keys() | {Kind.RUNNING} == set(Kind)


async def test_the_exit_status_and_the_requests_that_were_cut_off_are_told(client, home, console):
    """As far as the console saw them run."""
    ids = gallery(home)
    ended = Catalogue(home).find(ids["failed-serving"]).record().ended
    console.follower.history.append((ended - 0.6, 100.0, 6, 0, 0.5))
    text = text_of(await client.get(f"/launches/{ids['failed-serving']}"))
    assert "6 requests" in text
    assert "killed by SIGKILL" in text


async def test_the_phases_that_were_not_reached_are_named(client, home):
    """Those of the last good launch, whatever phases the engine has."""
    ids = gallery(home)
    assert "self-test not reached" in text_of(await client.get(f"/launches/{ids['failed']}"))
    vllm = text_of(await client.get(f"/launches/{ids['failed-vllm']}"))
    assert "compile 3.0 s failed" in vllm
    assert "not reached" not in vllm  # the good ones were the native engine's


async def test_evidence_leads_to_its_line_and_the_line_is_there(client, home):
    failed_launch(home, BAD)
    page = await client.get(f"/launches/{BAD}")
    address = f"/log?launch={BAD}&line=3#L3"
    assert f'href="{address}"' in unescape(page.text)
    log = (await client.get(address.partition("#")[0])).text
    assert 'log-asked" id="L3"' in log


async def test_findings_have_a_fix_each_and_one_for_all(client, home):
    """Patches as a change from what was to what will be, commands to copy with where to run them."""
    refused(home, BAD)
    page = await client.get(f"/launches/{BAD}")
    text = text_of(page)
    assert text.count("Apply and restart") == 2
    assert "Apply all and restart" in text
    both = json.dumps({"backends.moe": None, "max-model-len": 40960})
    assert f'value="{both}"' in unescape(page.text)
    assert "was 131072 becomes 40960" in text
    assert "was flashinfer becomes auto (default)" in text
    assert "cp ORIGINAL/tokenizer.json" in text
    assert text.index("cp ORIGINAL/tokenizer.json") < text.index("ls -l models/Qwen3-8B")
    assert fixes.PLACE in text
    assert fixes.PLACES["docker"] in text


async def test_each_choice_of_a_fix_is_a_button(client, home):
    options = ({"model.path": "Qwen3-8B"}, {"model.path": "org/tiny"})
    refused(home, BAD, structs.replace(TOKENIZER, fix=Fix(text="Choose one.", options=options)))
    text = unescape((await client.get(f"/launches/{BAD}")).text)
    for option in options:
        assert f"""name="patch" value="{json.dumps(option)}">""" in text


async def test_the_cause_of_a_crash_stands_once_on_its_page(client, home):
    """In its card; not again as the reason, in the list of events, and beside the state."""
    launch = failed_launch(home, BAD)
    summary = launch.record.diagnosis.summary
    launch.change(State.FAILED, summary)
    page = unescape((await client.get(f"/launches/{BAD}")).text)
    assert page.count(summary) == 1


def test_fixes_that_disagree_are_not_joined(home):
    launch = refused(home, BAD, CONTEXT, FORCED)
    assert fixes.together(launch.record).patch == {"max-model-len": 40960, "backends.moe": None}
    for other in ({"max-model-len": 8192}, {"backends": {"moe": "triton"}}):
        launch.record.findings = [
            CONTEXT,
            FORCED,
            Finding(id="x", severity=Severity.ERROR, message="", fix=Fix(text="", patch=other)),
        ]
        assert fixes.together(launch.record) is None
    launch.record.findings = [CONTEXT, TOKENIZER]
    assert fixes.together(launch.record) is None


@pytest.mark.parametrize(
    ("before", "patch"),
    [
        ({}, {"kv-cache-memory-bytes": None}),
        ({"max-model-len": 4096}, {"max-model-len": 4096}),
        ({}, {"backends.moe": "auto"}),
        ({"backends": {"moe": "auto"}}, {"backends.moe": None}),
        ({"vllm": {"environment": {"A": "1"}}}, {"vllm.environment.A": "1"}),
    ],
)
async def test_a_fix_that_changes_nothing_cannot_be_applied(client, home, before, patch):
    """The same setting again, "not set becomes not set", or the default in the place of nothing."""
    vain = structs.replace(CONTEXT, fix=Fix(text="Do it.", patch=patch))
    launch = refused(home, BAD, vain)
    document(launch, **before)
    answer = await client.get(f"/launches/{BAD}")
    text = text_of(answer)
    assert 'data-fix="applied"' in answer.text
    assert "Apply" not in text
    useful = structs.replace(CONTEXT, fix=Fix(text="Do it.", patch={"max-model-len": 512, **patch} | {"name": "x"}))
    assert [row.key for row in fixes.changes(useful.fix.patch, {"max-model-len": 512, **before})] == ["name"]
    launch.record.findings = [vain, useful]
    assert fixes.together(launch.record, {"max-model-len": 1, **before}) is None, "only one of them changes anything"


async def test_a_launch_of_a_profile_file_says_where_to_make_the_change(client, home):
    failed_launch(home, BAD, revision="")
    text = (await client.get(f"/launches/{BAD}")).text
    assert "/apply-fix" not in text
    assert 'data-fix="file"' in text


async def test_a_fix_for_an_old_launch_asks_as_whatever_ends_requests(client, home):
    failed_launch(home, BAD)
    ready_launch(home, NOW)
    page = (await client.get(f"/launches/{BAD}")).text
    assert page.count('data-ends-requests="Apply and restart"') == page.count("/apply-fix") > 0


async def test_the_stacks_of_a_hung_launch_can_be_read(client, home):
    ids = gallery(home)
    page = await client.get(f"/launches/{ids['hung']}")
    text = text_of(page)
    assert "Process 4107 is running /usr/bin/python3 -m appliance.engine.core Python v3.11.2" in text
    assert "Process 4133 is waiting in do_epoll_wait /usr/bin/python3" in text
    assert (
        "Process 4139 is waiting for a device or disk in nvidia_ioctl /usr/bin/nvidia-smi Process 4140 is stopped"
        in text
    )
    assert "all_reduce torch/distributed/distributed_c10d.py:2806" in text
    assert "no stacks, since py-spy says" in text
    assert re.findall(r'data-doing="(\d+)"', page.text) == ["4107", "4133"]
    assert (await client.get(f"/launches/{ids['hung']}/stacks")).text == STACKS
    assert "stacks" not in (await client.get(f"/launches/{ids['failed']}")).text.partition("Its files")[2][:400]


def test_the_stacks_that_the_supervisor_writes_are_read():
    """Of a real family: each process once, with what it does and where, whether it is Python's or not."""
    source = "import subprocess, sys\np = subprocess.Popen(['sleep', '60'])\nprint(flush=True)\np.wait()"
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as python:
        python.stdout.readline()
        asleep = psutil.Process(python.pid)
        (sleeper,) = asleep.children()
        try:
            wait_for("both sleep", lambda: {asleep.status(), sleeper.status()} == {psutil.STATUS_SLEEPING})
            wait_for("it is what it runs", lambda: sleeper.name() == "sleep")
            told = dump_stacks(python.pid)
            waits = Path(f"/proc/{sleeper.pid}/wchan").read_text().strip("0\n")
        finally:
            sleeper.kill()
    found = stacks.parse(told)
    assert found.rest == []
    parent, child = found.processes
    assert [int(parent.pid), int(child.pid)] == [python.pid, sleeper.pid]
    assert (parent.state, child.state) == ("S", "S")
    assert child.what == "sleep 60"
    assert parent.what.startswith(sys.executable)
    assert not any("state" in note for note in parent.notes + child.notes)
    assert not any(note.startswith(parent.what) for note in parent.notes), "py-spy's own head is not shown once more"
    assert child.waits == waits
    assert not has_stacks(told) or parent.threads[0].frames


def test_a_process_that_ended_is_one_too():
    (found,) = stacks.parse("Process 7 has ended\nProcess 7: no stacks, since it is gone").processes
    assert (found.pid, found.does, found.notes) == ("7", "has ended", ["no stacks, since it is gone"])


@pytest.mark.parametrize(
    "text", ["", "\n\n", "Thread 1 (idle)\n  f (x:1)", "Process 1: x\n  f (x.py:1)", "Process x", "((("]
)
def test_any_text_for_stacks_is_kept(text):
    found = stacks.parse(text)
    kept = [*found.rest, *(note for process in found.processes for note in process.notes)]
    assert len(kept) == len([line for line in text.splitlines() if line.strip()]) - len(found.processes)


async def test_what_helped_before_is_told(client, home):
    """Earlier launches that failed alike, each with the next good launch and what its profile changed."""
    failed_launch(home, "20261119-100000-aaaa", revision="r5")
    mended = ready_launch(home, "20261119-110000-aaaa", revision="r6")
    profile = mended.folder / "profile.yaml"
    profile.write_text(profile.read_text().replace("moe: flashinfer", "moe: triton"))
    failed_launch(home, BAD)
    answer = await client.get(f"/launches/{BAD}")
    text = text_of(answer)
    assert "1 earlier launch failed like this" in text
    assert 'data-fixed-by="20261119-110000-aaaa" data-kind="next"' in answer.text
    assert "backends.moe was flashinfer becomes triton" in text
    write_follow_up(home, "20261119-100000-aaaa", "fix", launch=mended.record.id, profile="qwen3-8b", revision="r6")
    again = (await client.get(f"/launches/{BAD}")).text
    assert 'data-fixed-by="20261119-110000-aaaa" data-kind="fix"' in again


async def test_a_roll_back_by_itself_links_both_launches(client, home):
    failed_launch(home, BAD)
    ready_launch(home, NOW, revision="r6")
    write_follow_up(home, BAD, "automatic-roll-back", launch=NOW, profile="qwen3-8b", revision="r6")
    before, after = await client.get(f"/launches/{BAD}"), await client.get(f"/launches/{NOW}")
    assert 'data-chain="follow-up" data-kind="automatic-roll-back"' in before.text
    assert "qwen3-8b r6" in text_of(before)
    assert f'href="/launches/{NOW}"' in before.text
    assert 'data-chain="came-from" data-kind="automatic-roll-back"' in after.text
    assert f'href="/launches/{BAD}"' in after.text


async def test_a_restart_by_itself_links_both_launches(client, home):
    failed_launch(home, BAD)
    again = ready_launch(home, NOW)
    again.record.restart_of = BAD
    again.save()
    before, after = await client.get(f"/launches/{BAD}"), await client.get(f"/launches/{NOW}")
    assert 'data-chain="restarted"' in before.text
    assert f'href="/launches/{NOW}"' in before.text
    assert 'data-chain="restart-of"' in after.text
    assert f'href="/launches/{BAD}"' in after.text


async def test_a_damaged_follow_up_is_passed_over(client, home):
    launch = failed_launch(home, BAD)
    for content in (b"", b"{", b'{"kind": "else"}', b"\xff\xfe", b"[]"):
        (launch.folder / "follow-up.json").write_bytes(content)
        assert (await client.get(f"/launches/{BAD}")).status_code == 200


async def test_applying_a_fix_leads_to_the_new_launch_before_it_has_begun(client, home, console, control):
    """A new revision with the change, activated; its page waits for the launch, the failed one says what was done."""
    write_checkpoint(home.models / "Tiny")
    store = ProfileStore(console.database)
    await store.create({"name": "gone", "model": {"path": "Gone-7B"}}, author="ann")
    failed_launch(home, BAD, profile="gone", revision="r1")
    data = {"revision": "r1", "patch": json.dumps({"model.path": "Tiny"}), "launch": BAD}
    done = await client.post("/profiles/gone/apply-fix", data=data, follow_redirects=False)
    kept = read_follow_up(home.launch(BAD))
    assert done.headers["location"] == f"/launches/{kept.launch}"
    assert (kept.kind, kept.profile, kept.revision) == ("fix", "gone", "r2")
    assert control.calls == ["restart"]
    waiting = await client.get(done.headers["location"])
    assert 'data-awaited="starting"' in waiting.text
    assert f'data-live="launch:{kept.launch}"' in waiting.text
    assert (await client.get("/launches/20260101-000000-0000")).status_code == 404
    messages = console.hub.listen({f"launch:{kept.launch}": ""})
    await message_with(messages, 'data-awaited="starting"')
    starting(home, kept.launch, profile="gone", revision="r2")
    await console.follower.look()
    await message_with(messages, "weights")
    await messages.aclose()


async def test_a_fix_that_preflight_refuses_loses_nothing(client, home, console, control):
    """The revision with the fix is there, the engine was not touched, and no follow-up is claimed."""
    store = ProfileStore(console.database)
    await store.create({"name": "gone", "model": {"path": "Gone-7B"}}, author="ann")
    failed_launch(home, BAD, profile="gone", revision="r1")
    data = {"revision": "r1", "patch": json.dumps({"model.path": "Also-Gone"}), "launch": BAD}
    answer = await client.post("/profiles/gone/apply-fix", data=data)
    assert answer.status_code == 422
    assert "gone r2" in text_of(answer)
    assert control.calls == []
    assert control.calls == []
    assert (await store.revision("gone")).number == 2
    assert read_follow_up(home.launch(BAD)) is None


async def test_rolling_back_from_a_launch_leads_to_the_new_one(client, home, console, control):
    write_checkpoint(home.models / "Tiny")
    store = ProfileStore(console.database)
    first = await store.create({"name": "chat", "model": {"path": "Tiny"}}, author="ann")
    await store.save("chat", {"name": "chat", "model": {"path": "Tiny"}, "max-num-seqs": 4}, base=1, author="ann")
    await client.post("/profiles/chat/activate", data={"revision": "2"})
    failed_launch(home, BAD, profile="chat", revision="r2")
    async with console.database.session() as session:
        session.add(Launch(launch_id="good", profile="chat", revision="r1", state="stopped", started=first.created + 1,
                           ready_after_s=1.0, path=""))  # fmt: skip
    done = await client.post("/profiles/-/roll-back", data={"launch": BAD}, follow_redirects=False)
    kept = read_follow_up(home.launch(BAD))
    assert (kept.kind, kept.revision) == ("roll-back", "r1")
    assert done.headers["location"] == f"/launches/{kept.launch}"


def test_what_the_running_phase_may_take(home):
    """What it took in the last good launch, and when it counts as hung; of a phase nobody knows, nothing is claimed."""
    good = ready_launch(home, GOOD).record
    now = starting(home, NOW).record
    expected = expectation(now, good)
    assert (expected.phase, expected.last_s, expected.limit_s) == ("weights", 2.5, 120.0)
    assert expected.last_whole_s == pytest.approx(4.03)
    slow = WrittenLaunch(home, BAD)
    slow.phase("weights", 100.0)
    assert expectation(now, slow.record).limit_s == 300.0
    now.engine = "vllm"
    assert expectation(now, good).limit_s == vllm_deadlines.FLOORS_S["weights"] != FLOORS_S["weights"]
    now.phases[-1].phase = "compile"
    assert expectation(now, good).limit_s == vllm_deadlines.FLOORS_S["compile"]
    now.phases[-1].phase = "something new"
    assert expectation(now, None)[2:] == (None, None, None)
    now.state = State.READY
    assert expectation(now, good) is None


async def test_a_starting_launch_says_what_is_to_be_expected(client, home, console, engine_runs):
    ready_launch(home, GOOD)
    starting(home, NOW)
    await console.follower.look()
    answer = await client.get(f"/launches/{NOW}")
    text = text_of(answer)
    assert "3.0 GiB of 15.0 GiB" in text
    assert "2.5 s" in text
    assert "4.0 s" in text
    assert 'data-limit="120.0"' in answer.text


async def test_the_cause_comes_to_an_open_page(home, console, engine_runs):
    """From starting to failed without a reload, with cause, fix and ways out; and what was done about it afterwards."""
    launch = starting(home, NOW)
    await console.follower.look()
    messages = console.hub.listen({f"launch:{NOW}": "", f"launch-details:{NOW}": ""})
    await message_with(messages, "15.0 GiB")
    launch.end_phases("failed")
    launch.diagnose()
    launch.change(State.FAILED, "It crashed.")
    await message_with(messages, "The MoE kernel", "Apply and restart", "in “weights”")
    write_follow_up(home, NOW, "roll-back", launch="x", profile="qwen3-8b", revision="r6")
    await message_with(messages, "Rolled back to qwen3-8b r6")
    await messages.aclose()


async def test_a_phase_moves_on_the_page_while_its_launch_is_one_of_many(home, console, engine_runs):
    """Three hundred earlier launches do not slow its page down."""
    for number in range(300):
        ready_launch(home, f"20261118-{number:06}-aaaa")
    launch = starting(home, NOW)
    await console.follower.look()
    messages = console.hub.listen({f"launch:{NOW}": ""})
    await message_with(messages)
    launch.phase("weights", 0.0, None, Progress(done=7 << 30, total=15 << 30, unit="bytes"))
    await message_with(messages, "7.0 GiB")
    await messages.aclose()


@pytest.mark.parametrize(("took_s", "is_timed"), [(0.0, False), (2.5, True)])
def test_a_phase_that_was_never_entered_took_no_time(took_s, is_timed):
    """One that was cut short did."""
    change = PhaseChange(phase="graphs", outcome="skipped", seconds=took_s)
    (row,) = timeline([Event(sequence=1, time=10.0, launch="a", body=change)], 1.0)
    assert (any(character.isdigit() for character in row.text), row.bad) == (is_timed, False)


@pytest.mark.parametrize(("phase", "is_timed"), [("weights", True), ("ready", False)])
def test_only_a_phase_that_lasts_is_timed(phase, is_timed):
    change = PhaseChange(phase=phase, outcome="done", seconds=0.0)
    (row,) = timeline([Event(sequence=1, time=10.0, launch="a", body=change)], 1.0)
    assert any(character.isdigit() for character in row.text) is is_timed


@pytest.mark.parametrize("ready_after_s", [5.0, None])
def test_a_launch_that_was_stopped_says_who_did_it(ready_after_s):
    reason = "Stopped by ann; 2 requests were ended."
    record = LaunchRecord(
        id="a", profile="p", started=1.0, ended=30.0, state=State.STOPPED, reason=reason, ready_after_s=ready_after_s
    )
    assert reason in sentence(record, runs=False)


def test_a_diagnosis_stands_once_in_the_timeline():
    """It is reported again with its fix, and stands where the last one is."""
    bodies = [DiagnosisReport(Diagnosis(summary="odd")), DiagnosisReport(Diagnosis(summary="odd", fix=Fix(text="b")))]
    rows = timeline([Event(sequence=n, time=5.0, launch="a", body=body) for n, body in enumerate(bodies)], 1.0)
    assert [(row.sequence, row.kind) for row in rows] == [(1, "diagnosis")]


def test_an_end_stands_once_in_the_timeline_with_all_that_is_known_of_it():
    """The kernel's record comes later; a number may be used again."""
    first = ProcessEnd(pid=12, name="core", time=5.0, status=-9)
    known = structs.replace(first, out_of_memory=True, kernel="Out of memory: Killed process 12")
    again = structs.replace(first, time=6.0, status=1)
    bodies = [ProcessEnded(first), ProcessEnded(again), ProcessEnded(known)]
    rows = timeline([Event(sequence=n, time=5.0 + n, launch="a", body=body) for n, body in enumerate(bodies)], 1.0)
    assert [known.kernel in row.text for row in rows] == [True, False]
    assert ["exit status 1" in row.text for row in rows] == [False, True]
