"""Missing rights on a file, a folder or a device."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="permission",
        name="permission-denied",
        pattern=r"(PermissionError|Permission denied|Operation not permitted).{0,20}?:? ?'(?P<path>[^']+)'",
        summary="The engine has no right to use {path}.",
        fix="Give the user who runs Ingot the right to read it (and to write it, if it is in the state folder).",
        command="ls -ld {path}",
    ),
    Cause(
        family="permission",
        name="permission-denied",
        pattern=r"PermissionError|Permission denied|\[Errno 13\]|\[Errno 1\] Operation not permitted",
        summary="The engine lacks a right on this system.",
        fix="Check who owns the state folder and the models folder, and as whom Ingot runs.",
    ),
)
