"""What the CPU benchmark concludes from its turns."""

from __future__ import annotations

from tests.bench.cpu import SHARE_GOAL, TURNS, Turn, compare
from tests.bench.table import conclude


def test_the_two_sides_take_turns_and_the_median_of_their_ratios_counts(capsys):
    """A machine that slows down for one turn, or for good, changes speeds and not the verdict."""
    order = []

    def side(name: str, tokens_per_s: float):
        def load(streams: int) -> Turn:
            order.append(name)
            pair = (len(order) - 1) // 2
            slowed = 10 if order.count(name) == 4 and name == "ours" else 1  # one turn, of one side
            return Turn(tokens_per_s / (1 + pair) / slowed, cpu_ms=2.0)

        return load

    figures = compare(8, side("ours", 90.0), side("products", 200.0))
    assert order[2:8] == ["ours", "products", "products", "ours", "ours", "products"]
    assert len(order) == 2 * (TURNS + 1)
    ratio, *shown = figures
    assert ratio.name == "cpu_8_streams_of_bare_products"
    assert (ratio.value, ratio.goal, ratio.ok) == (0.45, SHARE_GOAL[8], True)
    assert [figure.goal for figure in shown] == [None] * 4
    assert [figure.value for figure in shown if figure.unit == "ms"] == [2.0, 2.0]
    assert conclude(figures) == 0
    assert "missed" not in capsys.readouterr().out
