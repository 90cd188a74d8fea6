"""Nothing goes on: what a log says of it, and where the stacks of the processes tell why."""

from appliance.diagnosis.cause import Cause

_STACKS = "py-spy dump --pid <pid of each process>"

CAUSES = (
    Cause(
        family="hang",
        name="engine-start-timeout",
        signs=(
            "timed out waiting for engine",
            "did not become ready",
            "timed out waiting for",
            "engine core startup timed out",
            "startup timed out",
            "failed to become ready",
            "not ready within",
            "rpc call to",
            "timeouterror: rpc",
            "execute_model timed out",
            "sample_tokens timed out",
            "startup probe failed",
            "initialization timed out",
            "timed out during initialization",
        ),
        pattern=r"(?:engine|worker|server|rpc|core|execute_model|sample_tokens|probe|ready|initiali[sz]ation"
        r"|startup).{0,80}(?:time|ready"
        r"|fail)|(?:timed? ?out|ready).{0,80}(?:engine|worker|server|core|rpc)",
        summary="The engine, or one of its workers, did not answer in time.",
        fix="Start it again and take the stacks of its processes while it waits; where kernels are compiled, give it "
        "more time "
        "(VLLM_ENGINE_READY_TIMEOUT_S) or run from a cast.",
        patch={"vllm.environment.VLLM_ENGINE_READY_TIMEOUT_S": "1800"},
        command=_STACKS,
        line=True,
        vague=True,
    ),
    Cause(
        family="hang",
        name="watchdog",
        signs=(
            "watchdog timeout",
            "watchdog_timeout",
            "watchdog:",
            "soft lockup",
            "blocked for more than",
            "detector: hang",
        ),
        pattern=r"(?:watchdog.{0,20}time|soft lockup|task \S{1,60} blocked for more than|hang)",
        summary="A watchdog found that the engine made no progress.",
        fix="Start it again and take the stacks of its processes while it hangs; try without CUDA graphs.",
        patch={"enforce-eager": True},
        command=_STACKS,
        line=True,
        deadly=True,
    ),
)

# Lines that a living engine may write once or twice while it compiles; again and again at the end of a log they mean
# that somebody waits for a process that does not answer.
WAITING = (
    "no available shared memory broadcast block found",
    "no available block found in",
    "waiting for 1 local, 0 remote core engine proc",
    "core engine proc(s) to start",
    "waiting for engine core proc",
    "still waiting for",
    "waiting for the server to",
    "not ready yet",
    "waiting for worker",
    "waiting for output from mq_engine",
)  # fmt: skip
