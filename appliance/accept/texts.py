"""What is recorded unless a file of prompts is named: short texts of several kinds, so that many tokens are met."""

from __future__ import annotations

from typing import Final

TEXTS: Final[dict[str, str]] = {
    "prose": (
        "The ferry left the harbour a little before dawn, with eleven passengers and a cargo of timber. By noon the "
        "wind had turned, and the captain decided to wait behind the island until the sea was calm again."
    ),
    "dialogue": '"Have you measured it twice?" asked the inspector. "Three times," she said, "and it was the same each',
    "facts": "Water boils at 100 °C at sea level. On a mountain of 3,000 m it boils at about",
    "german": "Der Zug nach Salzburg fährt heute von Gleis 7 ab; über die Verspätung wird am Bahnsteig angesagt. Bitte",
    "french": "Le marché ouvre à sept heures. Les pêcheurs y vendent des sardines, des moules et, parfois, une énorme",
    "spanish": "Cuando terminó la reunión, el ingeniero guardó los planos en el cajón y preguntó si alguien quería",
    "russian": "Осенью дни становятся короче, и по утрам над рекой стоит густой",
    "chinese": "今天早上下了一场大雨,路上的行人都撑着",
    "japanese": "駅前の本屋は午後八時まで開いていますので、仕事の帰りに",
    "arabic": "وصل القطار إلى المحطة في الساعة",
    "python": "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n    if len(ordered)",
    "json": '{"id": 4711, "name": "pump 3", "readings": [{"at": "2026-01-05T08:00:00Z", "bar": 4.2}, {"at": "2026',
    "sql": "SELECT customer, SUM(amount) AS total\nFROM orders\nWHERE year = 2026\nGROUP BY customer\nORDER BY",
    "table": "| city | country | river |\n| --- | --- | --- |\n| Vienna | Austria | Danube |\n| Paris | France |",
    "arithmetic": "12 + 7 = 19\n45 + 8 = 53\n30 + 64 = 94\n58 + 27 =",
    "list": "1. Switch the machine off.\n2. Wait until the fan has stopped.\n3. Open the cover.\n4.",
    "symbols": "∑ α² ≤ β ⇒ x → ∞; £5 ≈ €6; «quoted» – “curly” … 🚀🧊 ★☆☆ a\u0301 \t\ttabs   and   spaces\n\n\n",
}
LONG: Final = "long"
