"""Models that did not start: not tried again at once, and their requests answered with the cause."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from appliance.protocol import Finding, LaunchRecord, Severity
from appliance.serving.errors import ApiError

if TYPE_CHECKING:
    from appliance.profile.startable import Startable

FIRST_PAUSE_S: Final = 30.0
LONGEST_PAUSE_S: Final = 600.0


class _Failure(NamedTuple):
    revision: tuple[str, str]
    failures: int
    until: float
    why: str


class Failures:
    """By model. A new revision is a new attempt."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: dict[str, _Failure] = {}

    def add(self, startable: Startable, record: LaunchRecord) -> ApiError:
        """The pause doubles with each failure in a row."""
        before = self._failures.get(startable.model)
        again = before is not None and before.revision == _revision(startable)
        count = before.failures + 1 if again and before is not None else 1
        pause = min(FIRST_PAUSE_S * 2 ** (count - 1), LONGEST_PAUSE_S)
        why = f"The model {startable.model!r} could not be started. {_cause(record)}"
        failure = _Failure(_revision(startable), count, self._now() + pause, why)
        self._failures[startable.model] = failure
        return self._error(failure)

    def forget(self, model: str) -> None:
        self._failures.pop(model, None)

    def of(self, startable: Startable) -> ApiError | None:
        """What requests are answered until the model may be tried again."""
        failure = self._failures.get(startable.model)
        if failure is None or failure.revision != _revision(startable) or self._now() >= failure.until:
            return None
        return self._error(failure)

    def _error(self, failure: _Failure) -> ApiError:
        headers = {"Retry-After": str(math.ceil(failure.until - self._now()))}
        return ApiError(503, failure.why, param="model", code="model_not_started", headers=headers)


def _revision(startable: Startable) -> tuple[str, str]:
    return startable.profile, startable.revision


def _cause(record: LaunchRecord) -> str:
    """The diagnosis, or what preflight found, with the fix; or else the reason."""
    error = next((finding for finding in record.findings if finding.severity is Severity.ERROR), None)
    if record.diagnosis is not None:
        return _with_fix(record.diagnosis.summary, record.diagnosis.fix.text if record.diagnosis.fix else "")
    return _finding(error) if error is not None else record.reason


def _finding(finding: Finding) -> str:
    return _with_fix(finding.message, finding.fix.text if finding.fix else "")


def _with_fix(what: str, fix: str) -> str:
    return f"{what} {fix}".rstrip()
