"""The model's folder exists inside the models folder and has the files every model needs."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint.config import config_path
from appliance.checkpoint.folder import require_files
from appliance.preflight.subject import Subject
from appliance.protocol import Finding


def run(subject: Subject) -> Iterator[Finding]:
    yield from ()
    config_path(subject.folder)  # recognises folders of other formats before their missing files are listed
    require_files(subject.folder)
