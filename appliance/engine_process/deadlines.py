"""When a launch counts as hung: a phase far longer than in the last good launch, a silent core, or an endless step."""

from __future__ import annotations

from collections.abc import Mapping

from appliance.protocol import LaunchRecord, Phase

SILENCE_S = 15.0
# Grace period before a front door that was asked to stop is killed: 5 s to drain requests, 6 s for the engine to exit,
# 5 s for the GPU to release its memory, 1 s to close open streams, and a margin.
STOPPED_WITHIN_S = 30.0
TIMES_LAST_GOOD = 3.0

# A phase's deadline is never shorter than this. Without an earlier good launch to compare with, it is how long the
# phase may make no progress. An engine may have floors of its own (`EngineLaunch.floors_s`).
FLOORS_S: dict[str, float] = {
    Phase.PREFLIGHT: 30.0,
    Phase.CORE_START: 60.0,
    Phase.WEIGHTS: 120.0,
    Phase.CACHE: 60.0,
    Phase.GRAPHS: 120.0,
    Phase.SELF_TEST: 120.0,
}

# The longest one engine step may take. The largest step (max-num-batched-tokens) takes about a second on a GPU, whose
# kernels are ready after the self-test, and minutes on two CPU cores with 8 billion parameters.
STEP = "step"
STEP_LIMITS_S: dict[str, float] = {"cuda": 60.0, "cpu": 900.0}


class Watch:
    """The deadlines of one launch. Reads no clock itself: `now` is the caller's, in monotonic seconds."""

    def __init__(self, last_good: LaunchRecord | None, now: float, floors_s: Mapping[str, float] = FLOORS_S) -> None:
        self._learned = {record.phase: record.seconds for record in last_good.phases} if last_good else {}
        self._heard = now
        self._said_hello = False
        self._where = ""
        self._busy_s = 0.0
        self.longest_step_s = 0.0
        self._step_limit_s = max(STEP_LIMITS_S.values())
        self._floors_s = floors_s
        self._began: dict[str, float] = {}
        self._moved: dict[str, float] = {}

    def heard(self, now: float, where: str | None = None, busy_s: float = 0.0) -> None:
        """A message arrived from the core; a heartbeat also says what the core is doing, and for how long."""
        self._heard = now
        self._said_hello = True
        if where is not None:
            self._where, self._busy_s = where, busy_s
            if where == STEP:
                self.longest_step_s = max(self.longest_step_s, busy_s)

    def runs_on(self, device: str) -> None:
        """`device` as in the core's configuration, such as "cuda:0"."""
        self._step_limit_s = STEP_LIMITS_S[device.partition(":")[0]]

    def excuse(self, now: float) -> None:
        """This process was not running either (swapping, suspended): the silence until now does not count."""
        self._heard = max(self._heard, now)

    def phase(self, phase: str, now: float, *, ended: bool = False) -> None:
        """A phase began, moved or ended."""
        self._began.setdefault(phase, now)
        self._moved[phase] = now
        if ended:
            del self._began[phase], self._moved[phase]

    def limit_s(self, phase: str) -> float:
        return max(self._floors_s[phase], TIMES_LAST_GOOD * self._learned.get(phase, 0.0))

    def silent(self, now: float) -> bool:
        return self._said_hello and now - self._heard > SILENCE_S

    def overdue(self, now: float) -> str | None:
        """Why the launch is hung; None while it is not."""
        # Importing libraries from a cold disk holds the GIL and so delays heartbeats; the phase's deadline applies.
        if self.silent(now) and Phase.CORE_START not in self._began:
            doing = f"; last reported: '{self._where}' for {self._busy_s:,.0f} s" if self._where else ""
            return f"no heartbeat from the core for {now - self._heard:,.0f} s{doing}"
        if self._where == STEP and self._busy_s > self._step_limit_s:
            return f"step running for {self._busy_s:,.0f} s; heartbeat alive"
        for phase in self._began:
            limit = self.limit_s(phase)
            if phase in self._learned and now - self._began[phase] > limit:
                return (
                    f"the {phase} phase has taken {now - self._began[phase]:,.0f} s; in the last good launch it "
                    f"took {self._learned[phase]:,.1f} s"
                )
            if phase not in self._learned and now - self._moved[phase] > limit:
                return f"no progress in the {phase} phase for {now - self._moved[phase]:,.0f} s"
        return None
