"""What a test needs of this machine and does not find."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def leave_out(reason: str) -> NoReturn:
    """Skips for a developer's account, which cannot have it. Root can: there a test that is left out would look like
    one that passed."""
    if os.geteuid() == 0:
        pytest.fail(f"{reason}; tests/container/with-docker.sh installs what these tests need")
    pytest.skip(reason)
