"""`make bench-prefixes`: its figures, of few conversations."""

from __future__ import annotations

from tests.bench.prefixes import GOAL, STREAMS, Load, figures, hit_rate


def test_conversations_are_found_where_there_is_a_copy_for_each() -> None:
    found = {figure.name: figure for figure in figures(STREAMS // 4, turns=4, seeds=1)}
    held = [figure for figure in found.values() if figure.goal is not None]
    assert [figure.goal for figure in held] == [GOAL] * 2
    assert all(figure.ok for figure in held)


def test_a_share_says_when_copies_are_missing() -> None:
    """Attention finds most of the prompts; without copies nothing is found, and with few of them little."""
    alone, none, few = (hit_rate(Load(1, 16, 4), snapshots) for snapshots in (None, 0, 6))
    assert alone > 0.7
    assert none == 0
    assert 0 < few < GOAL * alone
