"""The index numbers a log's lines however they were written, and reads any range of any size of file."""

from __future__ import annotations

import threading
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from console.logs import ansi
from console.logs import index as index_module
from console.logs.classify import Level
from console.logs.index import STRIDE, LogIndex
from console.logs.line import SHOWN_CHARACTERS


def text(line):
    return "".join(segment.text for segment in line.segments)


def numbers(found):
    return [line.number for line in found]


@given(
    st.lists(st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"")), max_size=STRIDE * 3),
    st.lists(st.integers(0, 4000), max_size=6),
    st.integers(1, 64),
)
@settings(deadline=None, max_examples=60)
def test_any_cut_of_the_writes_gives_the_same_lines(tmp_path_factory, lines, cuts, block):
    """However a file grows, and however it is read in blocks, the lines are those of the whole file."""
    path = tmp_path_factory.mktemp("log") / "engine.log"
    whole = b"".join(line + b"\n" for line in lines)
    index = LogIndex(path)
    kept, index_module.BLOCK = index_module.BLOCK, block
    try:
        done = 0
        for cut in [*sorted(min(cut, len(whole)) for cut in cuts), len(whole)]:
            with path.open("ab") as file:
                file.write(whole[done:cut])
            done = cut
            assert index.refresh() == whole[:done].count(b"\n")
    finally:
        index_module.BLOCK = kept
    assert index.total == len(lines)
    assert numbers(index.lines(1, len(lines) + 5)) == list(range(1, len(lines) + 1))
    for first in (1, STRIDE - 1, STRIDE, STRIDE + 1, 2 * STRIDE + 3):
        assert index.lines(first, 3) == index.numbered(range(first, first + 3))
        expected = [raw.decode("utf-8", "replace") for raw in lines[first - 1 : first + 2]]
        assert [text(line) for line in index.lines(first, 3)] == [ansi.plain(raw) for raw in expected]


def test_ranges_that_do_not_exist(tmp_path):
    """Out of range is empty, a missing file has no lines, and neither is an error."""
    index = LogIndex(tmp_path / "engine.log")
    assert index.refresh() == 0
    assert index.lines(1, 10) == []
    assert index.unfinished() is None
    assert index.matching(query="x")[:2] == ([], 0)
    (tmp_path / "engine.log").write_bytes(b"a\nb\n")
    assert index.refresh() == 2
    assert numbers(index.lines(-5, 2)) == [1, 2]
    assert index.lines(3, 10) == []
    assert index.lines(1, -1) == []
    assert numbers(index.numbered([2, 2, 9, 0, -1])) == [2]


def test_a_replaced_or_shortened_file_is_read_anew(tmp_path):
    """The numbers follow the file that is there now."""
    path = tmp_path / "engine.log"
    path.write_bytes(b"one\ntwo\nthree\n")
    index = LogIndex(path)
    assert index.refresh() == 3
    path.write_bytes(b"new\n")
    assert index.refresh() == 1
    assert text(index.lines(1, 1)[0]) == "new"
    (tmp_path / "other").write_bytes(b"a\nb\n")
    (tmp_path / "other").replace(path)
    assert index.refresh() == 2


def test_a_line_of_a_megabyte_is_cut_where_it_is_shown(tmp_path):
    """One huge line costs neither memory nor the page, says how much is missing, and the next line is found."""
    path = tmp_path / "engine.log"
    path.write_bytes(b"ERROR " + b"x" * (1 << 20) + b"\nafter\n" + b"\x1b[31m" * 200_000 + b"\n" + b"\xff\xfe\x00\n")
    index = LogIndex(path)
    assert index.refresh() == 4
    huge, after, bomb, invalid = index.lines(1, 4)
    assert (huge.level, len(text(huge))) == ("error", SHOWN_CHARACTERS)
    assert huge.cut == (1 << 20) + 6 + 1 - SHOWN_CHARACTERS
    assert text(after) == "after"
    assert bomb.segments == []
    assert text(invalid) == "\ufffd\ufffd␀"


def test_an_unfinished_line_is_told_as_such(tmp_path):
    """What stands after the last line end is shown, numbered as the line it will be."""
    path = tmp_path / "engine.log"
    path.write_bytes(b"done\nhalf of")
    index = LogIndex(path)
    assert index.refresh() == 1
    line = index.unfinished()
    assert line is not None
    assert (line.number, text(line)) == (2, "half of")
    with path.open("ab") as file:
        file.write(b" it\n")
    assert index.unfinished() is None
    assert index.refresh() == 2
    assert text(index.lines(2, 1)[0]) == "half of it"


def test_search_and_filter(tmp_path):
    """Matches are found in what is read, not in colour codes; upper and lower case alike; `after` goes on from it."""
    path = tmp_path / "engine.log"
    rows = [f"\x1b[0;36m(core pid=1)\x1b[0;0m INFO st\x1b[1mep {number}" for number in range(1, 201)]
    rows[149] = "(api pid=2) ERROR STEP over"
    path.write_text("\n".join(rows) + "\n")
    index = LogIndex(path)
    index.refresh()
    assert index.matching(query="step 20")[:2] == ([20, 200], 2)
    assert index.matching(query="1m")[:2] == ([], 0)
    assert index.matching(query="step", limit=3)[:2] == ([1, 2, 3], 200)
    assert index.matching(query="step", after=198)[:2] == ([199, 200], 2)
    assert index.matching(level=Level.WARNING)[:2] == ([150], 1)
    assert index.matching(process="api")[:2] == ([150], 1)
    assert index.matching(process="nobody")[:2] == ([], 0)
    assert index.matching(level=Level.ERROR, query="step 20")[:2] == ([], 0)
    assert index.processes == ["core", "api"]


@given(
    st.lists(
        st.text(alphabet="aAbB\u00e9\u0130 \r\x1b[1m\x00", max_size=8).map(lambda text: text.replace("\n", "")),
        max_size=200,
    ),
    st.text(alphabet="aAbB\u00e9 m", min_size=1, max_size=3),
    st.integers(0, 210),
)
@settings(deadline=None, max_examples=80)
def test_a_search_finds_what_reading_line_by_line_finds(tmp_path_factory, lines, query, after):
    """Whatever the lines hold, and however often it has to be asked until it is through."""
    path = tmp_path_factory.mktemp("log") / "engine.log"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    index = LogIndex(path)
    total = index.refresh()
    wanted = [
        number
        for number, line in enumerate(lines, 1)
        if number > after and query.casefold() in ansi.plain(line).casefold()
    ]
    found: list[int] = []
    scanned, asked = min(after, total), 0
    while scanned < total:
        part = index.matching(query=query, after=scanned, within_s=0)
        assert part.scanned > scanned
        found, scanned, asked = found + part.numbers, part.scanned, asked + 1
    assert found == wanted
    assert asked <= total // STRIDE + 1


def test_a_large_log_is_known_little_by_little(tmp_path):
    """A filter answers in a moment with what it has come to, and has it all when it was asked often enough; the lines
    themselves are there at once, each with its level."""
    path = tmp_path / "engine.log"
    lines = [f"INFO {number} of the log that says much" for number in range(1, 40_001)]
    lines[30_000] = "ERROR it broke"
    lines[30_001] = "Traceback (most recent call last):"
    lines[30_002] = "ValueError: x"
    path.write_text("\n".join(lines) + "\n")
    index = LogIndex(path)
    index_module.KINDS_S, kept = -1.0, index_module.KINDS_S
    try:
        assert index.refresh() == 40_000
    finally:
        index_module.KINDS_S = kept
    assert [line.level for line in index.lines(30_001, 4)] == ["error", "error", "error", "info"]
    first = index.matching(level=Level.ERROR, within_s=-1)
    assert (first.numbers, first.scanned < 40_000) == ([], True)
    found: list[int] = []
    scanned = 0
    while scanned < 40_000:
        part = index.matching(level=Level.ERROR, after=scanned, within_s=-1)
        found, scanned = found + part.numbers, part.scanned
    assert found == [30_001, 30_002, 30_003]


def test_many_processes_do_not_break_the_index(tmp_path):
    """More names than one byte can number: the later ones go unnamed."""
    path = tmp_path / "engine.log"
    path.write_text("".join(f"(worker{number} pid=1) x\n" for number in range(400)))
    index = LogIndex(path)
    assert index.refresh() == 400
    assert index.lines(10, 1)[0].process == "worker9"
    assert index.lines(400, 1)[0].process == ""


def test_reading_while_it_is_written_fast(tmp_path):
    """A log written at a high rate, in pieces that do not end at line ends, is read without a lost or mixed line."""
    path = tmp_path / "engine.log"
    total = 30_000

    def write():
        with path.open("ab", buffering=0) as file:
            data = b"".join(b"line %d of the log\n" % number for number in range(1, total + 1))
            for at in range(0, len(data), 7777):
                file.write(data[at : at + 7777])

    writer = threading.Thread(target=write)
    writer.start()
    index = LogIndex(path)
    seen = 0
    while seen < total:
        known = index.refresh()
        for line in index.lines(seen + 1, known - seen):
            seen += 1
            assert (line.number, text(line)) == (seen, f"line {seen} of the log")
    writer.join()


def test_a_flood_of_lines_costs_little_memory(tmp_path):
    """Of 300,000 lines some bytes each are kept, however often they are asked for."""
    path = tmp_path / "engine.log"
    with path.open("w") as file:
        file.writelines(
            f"WARNING 11-20 10:00:00 [scheduler.py:127] step {number} was preempted\n" for number in range(300_000)
        )
    tracemalloc.start()
    index = LogIndex(path)
    assert index.refresh() == 300_000
    for first in range(1, 300_000, 50_000):
        assert len(index.lines(first, 300)) == 300
    assert index.matching(query="step 1234 ").scanned > 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20
