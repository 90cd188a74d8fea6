"""Signs of a hang in the log."""

from __future__ import annotations

from typing import NamedTuple

from appliance.diagnosis.cause import Cause

_STACKS = "py-spy dump --pid <pid of each process>"

CAUSES = (
    Cause(
        family="hang",
        name="rank-hangs",
        signs=("rankhungerror",),
        pattern=r"(?P<who>ranks? \d.{0,200}?) of the model hangs?(?: in (?P<place>.{1,300}?))?: the others",
        summary="The model's {who} hangs at {place}; the other ranks wait for it.",
        fix="Start it again. If it hangs there again, look at what that line waits for; stacks.txt says where every "
        "rank stood.",
        deadly=True,
    ),
    Cause(
        family="hang",
        name="gpu-does-not-finish",
        signs=("rankswaiterror",),
        pattern=r"for (?P<seconds>\d{1,6}) s",
        summary="A step of the model does not finish: its ranks have waited {seconds} s for a GPU, or for each other.",
        fix="Look for Xid lines in the kernel's log; run without CUDA graphs and let the engine choose its backends.",
        patch={"enforce-eager": True, "backends": None},
        look="dmesg -T | grep -i -e xid -e nvrm",
        deadly=True,
    ),
    Cause(
        family="hang",
        name="unit-ran-out",
        signs=("start operation timed out", "failed with result 'timeout'"),
        summary="systemd ended the engine, as it was not ready in the time that its unit gives it to start.",
        fix="Give it more: TimeoutStartSec=infinity in the unit.",
        line=True,
        vague=True,
    ),
    Cause(
        family="hang",
        name="probe-ran-out",
        signs=("failed liveness probe", "failed startup probe"),
        summary="Kubernetes ended the engine because it did not answer a probe in time.",
        fix="Allow more time in a startup probe (failureThreshold times periodSeconds must cover the longest "
        "start), and check the probe's path and port.",
        look="kubectl describe pod <pod>",
        line=True,
        warning=True,
        vague=True,
    ),
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
            "failed to start within",
            "rpc call to",
            "timeouterror: rpc",
            "execute_model timed out",
            "sample_tokens timed out",
            "initialization timed out",
            "timed out during initialization",
        ),
        pattern=r"(?:engine|worker|server|rpc|core|execute_model|sample_tokens|probe|ready|initiali[sz]ation"
        r"|startup).{0,80}(?:time|ready|fail)|(?:timed? ?out|ready).{0,80}(?:engine|worker|server|core|rpc)",
        summary="The engine or one of its workers did not respond in time.",
        fix="Start it again and take its processes' stacks while it waits. If it compiles kernels, allow more time "
        "(VLLM_ENGINE_READY_TIMEOUT_S).",
        compiles=True,
        look=_STACKS,
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
        summary="A watchdog found that the engine was making no progress.",
        fix="Start it again and take its processes' stacks while it hangs; try without CUDA graphs.",
        patch={"enforce-eager": True},
        look=_STACKS,
        line=True,
        deadly=True,
    ),
)


class Waiting(NamedTuple):
    """Lines that a healthy engine may write once or twice while it starts. Repeated at the end of a log, they mean that
    it is stuck."""

    signs: tuple[bytes, ...]
    family: str
    cause: str
    what: str
    fix: str
    look: str


WAITING = (
    Waiting(
        signs=(b"waiting for creating a placement group", b"waiting for placement group"),
        family="multi-node",
        cause="not-enough-gpus-in-cluster",
        what="Ray, which cannot find enough free GPUs for the profile",
        fix="Check that every host has joined and shows its GPUs, that no other job holds them, and that "
        "VLLM_HOST_IP is each host's own address.",
        look="ray status",
    ),
    Waiting(
        signs=(
            b"no available shared memory broadcast block found",
            b"no available block found in",
            b"core engine proc(s) to start",
            b"waiting for engine core proc",
            b"still waiting for",
            b"waiting for worker",
            b"waiting for output from mq_engine",
        ),
        family="hang",
        cause="waits-for-worker",
        what="another of its processes, which does not respond",
        fix="Take its processes' stacks while it waits: they show whether it is compiling, waiting in a collective "
        "or reading a file. Then end all of them and start again.",
        look=_STACKS,
    ),
)
