"""config.json can be read, and says what a model must say."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint.config import SUPPORTED_ARCHITECTURES
from appliance.preflight.subject import Subject
from appliance.protocol import Finding


def run(subject: Subject) -> Iterator[Finding]:
    """An architecture that is not supported is the next check's to report."""
    yield from ()
    if subject.architecture in SUPPORTED_ARCHITECTURES:
        _ = subject.config
