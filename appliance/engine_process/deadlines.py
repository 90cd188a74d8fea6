"""When a launch counts as hung: a phase far longer than in the last good launch, a silent core, or an endless step."""

from __future__ import annotations

from appliance.engines import NATIVE, VLLM, engine_named
from appliance.protocol import LaunchRecord, Phase

SILENCE_S = 15.0
# Whoever stops a front door gives it so long before they kill it: requests drain for 5 s, an engine ends within another
# 6, a GPU gives its memory back within 5, open streams are cut after 1.
STOPPED_WITHIN_S = 30.0
TIMES_LAST_GOOD = 3.0

# How long a phase may take at least, whatever the last good launch took; and, where there has been none, how long it
# may stand still.
FLOORS_S: dict[str, float] = {
    Phase.PREFLIGHT: 30.0,
    Phase.CORE_START: 60.0,
    Phase.WEIGHTS: 120.0,
    Phase.CACHE: 60.0,
    Phase.GRAPHS: 120.0,
    Phase.SELF_TEST: 120.0,
}
# The same for vLLM, which imports for half a minute, twice, from a cold disk, and compiles for minutes without a word:
# its graph, and while it measures memory and captures graphs the kernels of its libraries.
VLLM_FLOORS_S: dict[str, float] = FLOORS_S | {
    Phase.ENGINE_START: 300.0,
    Phase.WEIGHTS: 300.0,
    Phase.COMPILE: 900.0,
    Phase.CACHE: 900.0,
    Phase.GRAPHS: 900.0,
    Phase.SELF_TEST: 300.0,
}


BY_ENGINE = {NATIVE.name: FLOORS_S, VLLM.name: VLLM_FLOORS_S}


def floors(engine: str) -> dict[str, float]:
    """By phase; `engine` as a launch's record names it."""
    return BY_ENGINE[engine_named(engine).name]


# How long one step of the engine may take. A GPU needs a second or so for the largest one (all of
# max-num-batched-tokens), and the self-test has built its kernels; two CPU cores need minutes for it with 8 billion
# weights, and what goes on is better left alone.
STEP = "step"
STEP_LIMITS_S: dict[str, float] = {"cuda": 60.0, "cpu": 900.0}


class Watch:
    """Pure bookkeeping over a clock that its caller reads (monotonic seconds)."""

    def __init__(self, last_good: LaunchRecord | None, now: float, engine: str = NATIVE.name) -> None:
        self._learned = {record.phase: record.seconds for record in last_good.phases} if last_good else {}
        self._heard = now
        self._said_hello = False
        self._where = ""
        self._busy_s = 0.0
        self.longest_step_s = 0.0
        self._step_limit_s = max(STEP_LIMITS_S.values())
        self._floors_s = floors(engine)
        self._began: dict[str, float] = {}
        self._moved: dict[str, float] = {}

    def heard(self, now: float, where: str | None = None, busy_s: float = 0.0) -> None:
        """A message came from the core; a beat also says where it is."""
        self._heard = now
        self._said_hello = True
        if where is not None:
            self._where, self._busy_s = where, busy_s
            if where == STEP:
                self.longest_step_s = max(self.longest_step_s, busy_s)

    def runs_on(self, device: str) -> None:
        """`device` as the core is configured with, such as "cuda:0"."""
        self._step_limit_s = STEP_LIMITS_S[device.partition(":")[0]]

    def excuse(self, now: float) -> None:
        """We were not listening ourselves (a machine that swaps or slept): the silence until now does not count."""
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
        # Loading libraries from a cold disk keeps Python's lock, and the beats with it; the phase's deadline holds.
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
