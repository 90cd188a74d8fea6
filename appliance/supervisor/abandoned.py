"""Launches whose front door was killed, or whose machine was switched off: closed by the next front door."""

from __future__ import annotations

import contextlib

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.launches.events import EventLog
from appliance.launches.states import ENDED
from appliance.protocol import State, StateChange

REASON = "It was cut off: the front door was killed, or the machine went down."
# A front door runs one launch at a time, so the one that was cut off is among the newest.
LOOK_AT = 20


def close_abandoned(home: Home) -> None:
    """Only whoever holds the lock of the state folder may call this: nobody else is running a launch then."""
    for folder, record in Catalogue(home).newest(LOOK_AT):
        if record.state in ENDED:
            continue
        record.ended = record.since = folder.path.stat().st_mtime
        with contextlib.suppress(FileNotFoundError):
            record.ended = record.since = folder.events.stat().st_mtime  # its last sign of life
        record.state, record.reason, record.cut_off = State.FAILED, REASON, True
        for phase in record.phases:
            phase.outcome = phase.outcome or "failed"
        folder.write_record(record)
        log = EventLog(folder.events, record.id)
        log.append(StateChange(state=State.FAILED, reason=REASON), record.ended)
        log.close()
