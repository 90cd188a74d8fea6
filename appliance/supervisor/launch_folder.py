"""`launches/<id>/`: the files of one launch, and how to find them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from appliance.home import Home, write_atomically
from appliance.protocol import Diagnosis, LaunchRecord

EVENTS = "events.jsonl"
LOG = "engine.log"
PROFILE = "profile.yaml"
RECORD = "launch.json"
DIAGNOSIS = "diagnosis.json"
STACKS = "stacks.txt"


class LaunchFolder:
    """The files of one launch. Everything but the log and the events is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, home: Home, launch_id: str) -> LaunchFolder:
        """Raises FileExistsError when a launch of this id has been there before: launches are never overwritten."""
        folder = home.launch(launch_id)
        folder.mkdir(mode=0o770, parents=True)  # less what the umask takes: 0o700 where engine and console are one user
        return cls(folder)

    @property
    def events(self) -> Path:
        return self.path / EVENTS

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def stacks(self) -> Path:
        return self.path / STACKS

    def write_record(self, record: LaunchRecord) -> None:
        write_atomically(self.path / RECORD, msgspec.json.format(msgspec.json.encode(record)))

    def write_profile(self, document: dict[str, Any]) -> None:
        """As it was given, whether it is valid or not."""
        from appliance.profile.document import write  # late: reading the state must not wait for it

        write_atomically(self.path / PROFILE, write(document))

    def write_diagnosis(self, diagnosis: Diagnosis) -> None:
        write_atomically(self.path / DIAGNOSIS, msgspec.json.format(msgspec.json.encode(diagnosis)))

    def write_stacks(self, text: str) -> None:
        write_atomically(self.stacks, text)

    def read_stacks(self) -> str | None:
        """None where none were taken, or could be written."""
        try:
            return self.stacks.read_text(errors="replace")
        except FileNotFoundError:
            return None

    def read_record(self) -> LaunchRecord | None:
        """None where the record is missing, was cut off while the disk was full, or may not be read by this user."""
        try:
            return msgspec.json.decode((self.path / RECORD).read_bytes(), type=LaunchRecord)
        except (OSError, msgspec.DecodeError):
            return None


def launch_ids(home: Home) -> list[str]:
    """Oldest first: ids sort by time."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(entry.name for entry in home.launches.iterdir() if entry.is_dir() and entry.name[0] != ".")
    return []


def newest_records(home: Home, limit: int = 200) -> Iterator[tuple[LaunchFolder, LaunchRecord]]:
    """The records of the last `limit` launches, newest first."""
    for launch_id in reversed(launch_ids(home)[-limit:]):
        folder = LaunchFolder(home.launch(launch_id))
        if (record := folder.read_record()) is not None:
            yield folder, record


def last_good(home: Home, profile: str) -> LaunchRecord | None:
    """The newest launch of this profile that became ready."""
    for _, record in newest_records(home):
        if record.profile == profile and record.ready_after_s is not None:
            return record
    return None
