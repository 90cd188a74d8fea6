"""When a failed engine is not restarted automatically: after the same failure twice, or three in ten minutes.

What starts it again may be its own profile (`on-failure: restart`), or somebody outside: systemd, a container's restart
policy. Both count, from the launches' records. A person who asks is never refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.protocol import Diagnosis, Fix, LaunchRecord, Phase, State

WINDOW_S = 600.0
MOST_FAILURES = 3
LOOK_AT = 20


def failures(home: Home, launch: LaunchRecord, now: float) -> list[LaunchRecord]:
    """The launches of this one's revision before it that failed within the window, newest first, back to the last one
    that was stopped, or ran another revision. Those that were refused count neither way: nothing was started."""
    found: list[LaunchRecord] = []
    for _, record in Catalogue(home).newest(LOOK_AT):
        ours = (record.profile, record.revision) == (launch.profile, launch.revision)
        if record.id == launch.id or record.attempt or (ours and (_refused(record) or _lost_its_power(record))):
            continue
        if not ours or record.state not in (State.FAILED, State.HUNG):
            break
        if abs(now - (record.ended or record.since)) > WINDOW_S:
            break
        found.append(record)
    return found


def verdict(failed: Sequence[LaunchRecord]) -> Diagnosis | None:
    """Why it is not restarted; None where it may be."""
    same = len(failed) >= 2 and _signature(failed[0]) == _signature(failed[1])
    if same and not failed[0].cut_off:
        again = "twice in a row with the same cause"
    elif len(failed) >= MOST_FAILURES:
        again = f"{len(failed)} times in {WINDOW_S / 60:.0f} minutes"
    else:
        return None
    last = failed[0].diagnosis
    why = last.summary if last else failed[0].reason
    return Diagnosis(
        summary=f"This revision failed {again}, so it was not restarted automatically. Last failure: {why}",
        family="crash-loop",
        cause="restarts-into-failure",
        evidence=last.evidence if last else (),
        fix=Fix(
            text=_remedy(last),
            patch=last.fix.patch if last and last.fix else None,
            command=last.fix.command if last and last.fix else None,
            look=last.fix.look if last and last.fix else None,
        ),
    )


def _remedy(last: Diagnosis | None) -> str:
    start = "Then start it again in the console, or with `ingot serve` in a terminal."
    return f"{last.fix.text} {start}" if last and last.fix else f"Fix the cause first. {start}"


def _refused(record: LaunchRecord) -> bool:
    """Preflight said no, or this module did: nothing was started."""
    return all(phase.phase == Phase.PREFLIGHT for phase in record.phases)


def _lost_its_power(record: LaunchRecord) -> bool:
    """It served, and then the machine went down: no failure of the revision."""
    return record.ready_after_s is not None and record.cut_off


def _signature(record: LaunchRecord) -> tuple[str | None, str | None]:
    diagnosis = record.diagnosis
    if diagnosis is None:
        return None, record.reason
    return (diagnosis.family, diagnosis.cause) if diagnosis.cause else (None, diagnosis.summary)
