"""Missing permissions on a file, folder, device or socket."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="permission",
        name="docker-socket",
        signs=("docker daemon socket", "docker.sock"),
        pattern=r"permission denied",
        summary="This user may not use Docker.",
        fix="Add the user to the docker group, or run the command with sudo.",
        command="usermod -aG docker $USER",
        line=True,
    ),
    Cause(
        family="permission",
        name="cache-not-writable",
        signs=("permissionerror", "permission denied", "read-only"),
        pattern=r"permission ?(?:error|denied).{0,60}?'(?P<path>[^']{0,200}(?:/\.(?:cache|triton|config|local|nv"
        r"|flashinfer|vllm|dg_jit)|cache)[^']{0,200})'",
        summary="The engine may not write to its cache folder {path}, because it runs as another user.",
        fix="Give the user that runs the engine that folder, or set HOME (and TRITON_CACHE_DIR, VLLM_CACHE_ROOT, "
        "XDG_CACHE_HOME) to one that this user may write to, as in a container.",
        look="id; ls -ld {path}",
    ),
    Cause(
        family="permission",
        name="mounted-noexec",
        signs=("failed to map segment from shared object: operation not permitted",),
        summary="A library cannot be loaded because its file system is mounted noexec.",
        fix="Mount it with exec, or move the environment and the temporary folder (TMPDIR) elsewhere.",
        look="mount | grep noexec",
        line=True,
    ),
    Cause(
        family="permission",
        name="user-unknown",
        signs=("getpwuid(): uid not found", "no username set", "getpwuid()", "i have no name"),
        summary="The engine runs as a user ID that has no name on this system.",
        fix="Set USER and HOME in its environment (HOME to a folder that it may write to), or run it as a known "
        "user.",
        look="id",
    ),
    Cause(
        family="permission",
        name="permission-denied",
        signs=("permissionerror", "permission denied", "operation not permitted", "[errno 13]", "[errno 1]", "eacces"),
        pattern=r"(?:permissionerror|permission denied|operation not permitted).{0,40}?'(?P<path>[^']{1,300})'",
        summary="The engine may not access {path}.",
        fix="Give the user that runs Ingot permission to read it (and to write, if it is in the state folder).",
        look="id; ls -ld {path}",
        broad=True,
    ),
    Cause(
        family="permission",
        name="permission-denied",
        signs=("permissionerror", "permission denied", "[errno 13]", "eacces", "[errno 1] operation not permitted",
               "insufficient permissions", "access is denied", "operation not permitted"),
        summary="The engine lacks a permission on this system.",
        fix="Check who owns the state folder, the models folder and the devices, and which user runs Ingot.",
        look="id; ls -l /dev/nvidia*",
        line=True,
        broad=True,
    ),
)  # fmt: skip
