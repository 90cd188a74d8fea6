"""When a rank counts as hung, on a clock of the test's."""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable

import pytest

from appliance.engine.rank_hang import is_busy
from appliance.engine.rank_watch import ALL_WAIT_S, LATE_S, LATELY_S, Hang, RankWatch
from appliance.engine.ranks import LOOK_EVERY_S
from appliance.launches.stacks import parse
from appliance.models.rank_progress import Doing, RankProgress, SharedProgress, place_of

Act = Callable[[list[RankProgress]], None]


class Ranks:
    """Two or more of them, looked at four times a second."""

    def __init__(self, count: int = 2) -> None:
        self._shared = SharedProgress.of(count)
        self.progress = [self._shared.rank(rank) for rank in range(count)]
        self._watch = RankWatch()
        self.now = 100.0

    def all(self, *calls: str) -> None:
        for each in self.progress:
            for call in calls:
                getattr(each, call)()

    def look(self, seconds: float) -> tuple[Hang, float] | None:
        """The first hang that is seen within `seconds`, and after how long."""
        begun = self.now
        while self.now < begun + seconds:
            self.now += LOOK_EVERY_S
            hang = self._watch.look(self._shared.words(), self.now)
            if hang is not None:
                return hang, self.now - begun
        return None

    def be_patient(self) -> None:
        self._watch.be_patient()


def hung(found: tuple[Hang, float] | None, within_s: float) -> tuple[int, ...]:
    assert found is not None
    assert found[1] <= within_s
    assert not found[0].all_wait
    return found[0].ranks


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_the_other_waits_for_in_a_collective_hangs(late: int) -> None:
    ranks = Ranks()
    ranks.all("begin_turn", "wait", "go_on")
    ranks.progress[1 - late].wait()
    assert hung(ranks.look(5), LATE_S + 2 * LOOK_EVERY_S) == (late,)


def test_all_that_are_late_are_told() -> None:
    ranks = Ranks(4)
    ranks.all("begin_turn")
    for rank in (0, 3):
        ranks.progress[rank].wait()
    assert hung(ranks.look(5), LATE_S + 2 * LOOK_EVERY_S) == (1, 2)


def test_one_that_the_other_has_no_more_turns_for_is_told_later() -> None:
    """Nobody waits for it yet."""
    ranks = Ranks()
    ranks.all("begin_turn", "wait", "go_on")
    ranks.progress[0].end_turn()
    assert ranks.look(ALL_WAIT_S - 1) is None
    assert hung(ranks.look(5), 1 + 2 * LOOK_EVERY_S) == (1,)


def test_the_first_rank_hangs_for_those_that_wait_for_their_next_turn() -> None:
    """Where steps overlap, they end a turn without a word from it."""
    ranks = Ranks()
    ranks.all("begin_turn")
    ranks.progress[1].end_turn()
    assert hung(ranks.look(5), LATE_S + 2 * LOOK_EVERY_S) == (0,)


def test_one_that_is_ahead_in_a_call_that_does_not_say_so_waits_too() -> None:
    """As when the queue of its device is full."""
    ranks = Ranks()
    ranks.all("begin_turn")
    ranks.progress[0].wait()
    ranks.progress[0].go_on()
    assert hung(ranks.look(5), LATE_S + 2 * LOOK_EVERY_S) == (1,)


def test_ranks_that_compute_are_not_late_however_long_they_take() -> None:
    ranks = Ranks()
    ranks.all("begin_turn")
    assert ranks.look(120) is None


def test_idle_ranks_do_not_hang() -> None:
    ranks = Ranks()
    ranks.all("begin_turn", "end_turn")
    assert ranks.look(120) is None


def test_a_rank_may_take_ten_times_what_the_other_took() -> None:
    """A chunk of a long prompt on a CPU: eight seconds of one, eleven of the other."""
    ranks = Ranks()
    ranks.all("begin_turn")
    assert ranks.look(8) is None
    ranks.progress[0].wait()
    assert ranks.look(3) is None
    ranks.progress[1].wait()
    ranks.all("go_on", "end_turn", "begin_turn")
    ranks.progress[0].wait()
    found = ranks.look(150)
    assert found is not None
    assert 100 < found[1] < 112
    assert found[0].ranks == (1,)


def test_what_took_long_is_forgotten() -> None:
    ranks = Ranks()
    ranks.all("begin_turn")
    assert ranks.look(8) is None
    ranks.all("wait", "go_on", "end_turn")
    assert ranks.look(LATELY_S + 1) is None
    ranks.all("begin_turn")
    ranks.progress[0].wait()
    assert hung(ranks.look(5), LATE_S + 2 * LOOK_EVERY_S) == (1,)


def test_short_steps_do_not_make_it_patient() -> None:
    ranks = Ranks()
    for _ in range(40):
        ranks.all("begin_turn", "wait", "go_on", "end_turn")
        assert ranks.look(LOOK_EVERY_S) is None
    ranks.all("begin_turn")
    ranks.progress[1].wait()
    assert hung(ranks.look(5), LATE_S + 2 * LOOK_EVERY_S) == (0,)


def test_a_rank_that_loads_or_captures_takes_its_time() -> None:
    """Also while the others wait for it, in what they prepare or not."""
    ranks = Ranks()
    ranks.progress[0].wait()
    assert ranks.look(120) is None
    ranks.progress[0].go_on()
    ranks.all("end_turn", "begin_turn")
    ranks.progress[0].wait()
    with ranks.progress[1].preparing():
        assert ranks.look(120) is None
    assert hung(ranks.look(5), LATE_S + 2 * LOOK_EVERY_S) == (1,)


def test_what_a_rank_waits_for_while_it_prepares_is_part_of_that() -> None:
    progress = Ranks(1).progress[0]
    word = memoryview(bytearray(8)).cast("q")
    progress = RankProgress(word)
    progress.begin_turn()
    with progress.preparing():
        progress.wait()
        assert place_of(word[0]) == (Doing.PREPARES, 2)
        progress.go_on()
    assert place_of(word[0]) == (Doing.COMPUTES, 2)
    progress.wait()
    assert place_of(word[0]) == (Doing.WAITS, 3)


def test_ranks_that_all_wait_are_told_after_longer() -> None:
    """For their devices, or for each other."""
    ranks = Ranks()
    ranks.all("begin_turn", "wait")
    found = ranks.look(ALL_WAIT_S * 2)
    assert found is not None
    assert found[0].all_wait
    assert found[0].ranks == (0, 1)
    assert ALL_WAIT_S <= found[1] <= ALL_WAIT_S + 1


def test_one_that_waits_for_its_device_while_the_other_is_done_is_told() -> None:
    ranks = Ranks()
    ranks.all("begin_turn", "wait")
    ranks.progress[0].go_on()
    ranks.progress[0].end_turn()
    found = ranks.look(ALL_WAIT_S * 2)
    assert found is not None
    assert found[0].ranks == (1,)


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The machine was suspended, or this process was."""
    ranks = Ranks()
    ranks.all("begin_turn")
    ranks.progress[0].wait()
    assert ranks.look(1) is None
    ranks.now += 3600
    assert ranks.look(1) is None
    assert hung(ranks.look(5), LATE_S) == (1,)


def test_one_that_is_found_to_work_is_looked_at_again_later() -> None:
    ranks = Ranks()
    ranks.all("begin_turn")
    ranks.progress[0].wait()
    assert hung(ranks.look(5), LATE_S + 2 * LOOK_EVERY_S) == (1,)
    ranks.be_patient()
    assert ranks.look(LATE_S * 2) is None
    assert hung(ranks.look(30), LATE_S * 4) == (1,)


@pytest.mark.parametrize(
    ("frame", "busy"),
    [
        ("stuck (odd/even.py:7)", False),
        ("all_reduce (torch/distributed/distributed_c10d.py:2900)", False),
        ("make_cubin (triton/backends/nvidia/compiler.py:9)", True),
        ("_call_with_frames_removed (<frozen importlib._bootstrap>:488)", True),
    ],
)
def test_one_that_compiles_or_imports_works(frame: str, busy: bool) -> None:
    pid = os.getpid()
    text = f'Process {pid}, state R: python -m appliance.engine\n\nThread {pid} (active): "MainThread"\n    {frame}\n'
    assert is_busy(pid, parse(text)) is busy


def test_saying_so_costs_a_step_next_to_nothing() -> None:
    """128 collectives: of 64 layers that are launched one by one, which takes some ten milliseconds."""
    progress = SharedProgress.of(2).rank(1)
    progress.begin_turn()

    def step() -> None:
        for _ in range(128):
            progress.wait()
            progress.go_on()

    assert min(timeit.repeat(step, number=10, repeat=5)) / 10 < 500e-6
