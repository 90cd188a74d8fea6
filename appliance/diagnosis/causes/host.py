"""Limits of the host: disk, open files, processes, shared memory."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="host",
        name="disk-full",
        pattern=r"No space left on device|\[Errno 28\]|Disk quota exceeded",
        summary="The disk is full.",
        fix="Free space on the disk that holds the state folder and the temporary files.",
        command="df -h",
    ),
    Cause(
        family="host",
        name="read-only-file-system",
        pattern=r"Read-only file system(: '(?P<path>[^']+)')?",
        summary="Something must be written where the file system is read-only.",
        fix="Mount the state folder so that it can be written.",
    ),
    Cause(
        family="host",
        name="too-many-open-files",
        pattern=r"Too many open files|\[Errno 24\]",
        summary="The limit of open files is reached.",
        fix="Raise the limit for the user who runs Ingot, for example to 65536.",
        command="ulimit -n 65536",
    ),
    Cause(
        family="host",
        name="too-many-processes",
        pattern=r"can't start new thread|Resource temporarily unavailable|pthread_create failed",
        summary="The limit of processes and threads is reached.",
        fix="Raise the limit of processes (ulimit -u, or the container's pids limit).",
        command="ulimit -u",
    ),
)
