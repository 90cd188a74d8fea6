"""Of what is wrong with an imported model: which of its files have changed since, and what copies them again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from appliance.diagnosis.restoring import changed_since_import, in_words, restoring_command
from appliance.protocol import Finding, Severity


def with_restoring(findings: Iterable[Finding], folder: Path) -> Iterator[Finding]:
    """Errors of a check of the model; those that have a fix of their own keep it."""
    for finding in findings:
        fix = finding.fix
        if finding.severity is not Severity.ERROR or fix is None or fix.mends or fix.options:
            yield finding
            continue
        changed = changed_since_import(folder)
        command = restoring_command(folder, changed)
        if command is None:
            yield finding
            continue
        files = in_words(changed)
        text = f"{fix.text} {files} changed after the model was imported; with its drive mounted, this copies it again."
        yield msgspec.structs.replace(finding, fix=msgspec.structs.replace(fix, text=text, command=command))
