"""The process limits suffice: open files for clients, processes and threads for workers, locked memory for network
cards."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.plan.effective import workers
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

# Libraries, logs, the model's files, the database.
OWN_FILES = 192
# Threads that torch, its pools and the front door start whatever the machine, and for each core of each worker.
OWN_THREADS, THREADS_PER_CORE = 128, 2
CANNOT_START = 48
MIB = 1 << 20


def run(subject: Subject) -> Iterator[Finding]:
    yield from _open_files(subject)
    yield from _processes(subject)
    yield from _locked_memory(subject)


def _open_files(subject: Subject) -> Iterator[Finding]:
    limit = subject.context.inventory.host.open_files
    # A request has its client's connection, and with a server behind the front door the one on which it is handed on.
    wanted = OWN_FILES + subject.profile.max_num_seqs * (2 if subject.traits.own_server else 1)
    if limit is not None and limit < wanted:
        yield Finding(
            id="open-files-few",
            severity=Severity.ERROR if limit < OWN_FILES // 3 else Severity.WARNING,
            message=f"The limit of open files is {limit:,}; {subject.profile.max_num_seqs:,} concurrent requests need "
            f"{wanted:,}.",
            field="ulimit -n",
            value=limit,
            fix=Fix(
                text="Raise the limit (`LimitNOFILE=` in a systemd unit, `ulimits:` in compose.yaml).",
                command="ulimit -n 65536",
            ),
        )


def _processes(subject: Subject) -> Iterator[Finding]:
    host = subject.context.inventory.host
    wanted = OWN_THREADS + workers(subject.profile) * host.cores * THREADS_PER_CORE
    left, where = None if subject.here.uid == 0 else host.processes, "ulimit -u"  # it does not bind root
    if host.processes_left is not None and (left is None or host.processes_left < left):
        left, where = host.processes_left, "pids.max"
    if left is None or left >= wanted:
        return
    text = "Raise it: `pids_limit:` in compose.yaml, `--pids-limit`" if where == "pids.max" else "Raise it"
    yield Finding(
        id="processes-few",
        severity=Severity.ERROR if left < CANNOT_START else Severity.WARNING,
        message=f"{left:,} more processes and threads may be started; the engine needs {wanted:,}. It would fail "
        "with \"can't start "
        'new thread".',
        field=where,
        value=left,
        fix=Fix(
            text=f"{text} (`TasksMax=` in a systemd unit).",
            command="docker update --pids-limit 4096 ingot-engine" if where == "pids.max" else "ulimit -u 65536",
        ),
    )


def _locked_memory(subject: Subject) -> Iterator[Finding]:
    limit = subject.context.inventory.host.locked_memory_bytes
    over_hosts = subject.profile.ray.address is not None
    without = subject.engine_environ.get("NCCL_IB_DISABLE") == "1"
    cards = subject.traits.several_hosts and over_hosts and not without and _has_infiniband(subject)
    if cards and limit is not None and limit < 64 * MIB:
        yield Finding(
            id="locked-memory-small",
            severity=Severity.WARNING,
            message=f"The limit of locked memory is {limit // 1024:,} KiB; InfiniBand adapters need more.",
            field="ulimit -l",
            value=limit,
            fix=Fix(
                text="Raise the limit (`LimitMEMLOCK=infinity`, `ulimits: {memlock: -1}`), or set NCCL_IB_DISABLE.",
                command="ulimit -l unlimited",
            ),
        )


def _has_infiniband(subject: Subject) -> bool:
    try:
        return any(subject.here.at("/sys/class/infiniband").iterdir())
    except OSError:
        return False
