"""A launch's folder is read as far as it can be read, whatever happened to its files."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import LaunchFolder
from appliance.protocol import Progress, State
from tests.console.launch_folders import DIAGNOSIS, STARTED, WrittenLaunch, failed_launch, ready_launch

CUT_OFF_BEFORE = "It was cut off: the front door was killed, or the machine went down."

ID = "20261120-100000-aaaa"


def test_a_launch_as_its_events_tell_it(home):
    """Phases with times and outcomes, findings, diagnosis and state come from the events."""
    launch = failed_launch(home, ID)
    record = LaunchFolder(launch.folder).read().record
    assert record.state is State.FAILED
    assert record.reason == "The core ended with exit code 1."
    assert [phase.phase for phase in record.phases] == ["preflight", "core start", "weights", "cache", "graphs"]
    assert [phase.outcome for phase in record.phases] == ["done", "done", "done", "done", "failed"]
    assert record.phases[-1].progress == Progress(done=3, total=8, unit="graphs")
    assert record.phases[1].started == pytest.approx(STARTED + 0.02)
    assert record.diagnosis == DIAGNOSIS
    assert (record.profile, record.revision) == ("qwen3-8b", "r7")


def test_how_long_it_took_is_what_the_record_says(home):
    """The engine measures it, by a clock that nobody sets; the times of events are a little later and may jump."""
    launch = ready_launch(home, ID)
    launch.record.ready_after_s = 2.5
    launch.save()
    assert LaunchFolder(launch.folder).read().record.ready_after_s == 2.5


def test_reading_goes_on_where_it_stopped(home):
    """Each read takes in what was written since, also when a line arrives in two pieces."""
    launch = ready_launch(home, ID)
    folder = LaunchFolder(launch.folder)
    assert len(folder.read().events) == launch.sequence - 1  # the log's lines are not among them
    launch.change(State.DRAINING)
    assert folder.read().record.state is State.DRAINING
    line = (launch.folder / "events.jsonl").read_bytes().splitlines()[-1].replace(b"draining", b"stopped")
    with (launch.folder / "events.jsonl").open("ab") as file:
        file.write(line[:30])
    assert folder.read().record.state is State.DRAINING
    with (launch.folder / "events.jsonl").open("ab") as file:
        file.write(line[30:] + b"\n")
    assert folder.read().record.state is State.STOPPED


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_damage_breaks_the_reading(tmp_path_factory, data):
    """Files cut anywhere, bytes changed anywhere, files missing: the record is true as far as it goes, and nothing is
    raised."""
    home = Home.at(tmp_path_factory.mktemp("home"))
    launch = failed_launch(home, ID)
    for name in ("events.jsonl", "launch.json", "diagnosis.json"):
        path = launch.folder / name
        raw = bytearray(path.read_bytes())
        deed = data.draw(st.sampled_from(["keep", "cut", "change", "remove", "empty", "junk"]), label=name)
        if deed == "cut":
            raw = raw[: data.draw(st.integers(0, len(raw)))]
        elif deed == "change":
            for _ in range(5):
                raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        elif deed == "empty":
            raw = bytearray()
        elif deed == "junk":
            raw = bytearray(data.draw(st.binary(max_size=200)))
        path.write_bytes(raw)
        if deed == "remove":
            path.unlink()
    files = LaunchFolder(launch.folder).read()
    assert files.record.id == ID
    assert msgspec.json.encode(files.record)


def test_damage_is_named(home):
    """The record names what could not be read, and has the rest."""
    launch = ready_launch(home, ID)
    (launch.folder / "launch.json").write_text('{"id": "20261120-1000')
    with (launch.folder / "events.jsonl").open("ab") as file:
        file.write(b'{"launch": 7}\nnot json\n')
    files = LaunchFolder(launch.folder).read()
    assert files.record.state is State.READY
    assert any("launch.json is damaged" in problem for problem in files.problems)
    assert any("2 lines of events.jsonl" in problem for problem in files.problems)
    empty = home.launch("20261120-110000-bbbb")
    empty.mkdir()
    assert "says anything" in LaunchFolder(empty).read().problems[0]


def test_a_line_of_many_megabytes_is_passed_over(home):
    """One monstrous event costs no memory to speak of, and those after it are read."""
    launch = ready_launch(home, ID)
    with (launch.folder / "events.jsonl").open("ab") as file:
        file.write(b"[" * (9 << 20) + b"\n")
    launch.change(State.DRAINING)
    files = LaunchFolder(launch.folder).read()
    assert files.record.state is State.DRAINING
    assert any("1 line of events.jsonl" in problem for problem in files.problems)


def test_what_is_a_launch(home, tmp_path):
    """Folders with a launch's name, newest first; never a file, a link, or a path that leads elsewhere."""
    catalogue = Catalogue(home)
    assert catalogue.ids() == []
    assert catalogue.current() is None
    ready_launch(home, ID)
    ready_launch(home, "20261120-110000-bbbb")
    (home.launches / ".deleted").mkdir()
    (home.launches / "a file").write_text("x")
    (home.launches / "linked").symlink_to(tmp_path)
    assert catalogue.ids() == ["20261120-110000-bbbb", ID]
    for name in ("..", ".", "", "linked", "../launches/" + ID, "a file", ID + "/", "x" * 300, "\x00", ".deleted"):
        assert catalogue.find(name) is None


def test_the_current_launch(home):
    """The newest that is not a refused attempt and says anything about itself."""
    catalogue = Catalogue(home)
    ready_launch(home, ID)
    assert catalogue.current() == ID
    WrittenLaunch(home, "20261120-120000-cccc", attempt=True)
    home.launch("20261120-130000-dddd").mkdir()
    assert catalogue.current() == ID
    WrittenLaunch(home, "20261120-140000-eeee")
    assert catalogue.current() == "20261120-140000-eeee"


def test_a_launch_that_has_ended_is_not_read_again(home, monkeypatch):
    """A list of thousands costs no look at each; one that goes on is looked at, one that was deleted is gone."""
    catalogue = Catalogue(home)
    for number in range(20):
        failed_launch(home, f"20261120-10{number:02}00-aaaa")
    going_on = ready_launch(home, "20261120-110000-bbbb")
    assert len(catalogue.records()) == 21
    reads = []
    original = LaunchFolder.record

    def record(folder):
        reads.append(folder.id)
        return original(folder)

    monkeypatch.setattr(LaunchFolder, "record", record)
    going_on.change(State.DRAINING)
    (home.launches / "20261120-100000-aaaa").rename(home.root / "gone")
    records = catalogue.records()
    assert (len(records), records[0].state, reads) == (20, State.DRAINING, ["20261120-110000-bbbb"])


def test_launches_of_one_second_are_listed_in_their_order(home):
    """A refused attempt and the launch that was made in spite of it are distinguished by the fraction."""
    ids = [home.new_launch_id(1795168305.0 + tenths / 10) for tenths in range(1, 10)]
    for name in ids:
        ready_launch(home, name)
    assert Catalogue(home).ids() == ids[::-1]


@pytest.mark.parametrize("written", [{"cut_off": True}, {"reason": CUT_OFF_BEFORE}])
def test_a_launch_that_was_cut_off_is_known_as_such(home, written):
    """By its reason in records of versions that wrote nothing else."""
    launch = ready_launch(home, "20261120-100000-aaaa")
    path = launch.folder / "launch.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "state": "failed", **written}))
    folder = LaunchFolder(launch.folder)
    assert folder.record().cut_off
    assert folder.read().record.cut_off
