"""The real logs beside the project, where they are: they are judged by, and are no part of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("INGOT_STARTUP_LOGS") or Path(__file__).parents[3] / "shared" / "startup-logs")


def entries() -> list[dict[str, Any]]:
    """The rows of its index; none where there is no such folder."""
    index = FOLDER / "index.json"
    if not index.is_file():
        return []
    rows: list[dict[str, Any]] = json.loads(index.read_text())
    return rows


HEALTHY_SHARED = [FOLDER / row["file"] for row in entries() if row["expect"] == "ok"]
