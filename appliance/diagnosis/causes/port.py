"""The address is in use, or does not belong to this machine."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="port",
        name="address-in-use",
        signs=("error while attempting to bind on address",),  # uvicorn's, right after its startup is complete
        pattern=r"address \('(?P<host>[^']{1,100})', (?P<port>\d{1,5})\S{0,20}\): .{0,40}?(?:already in use|98)",
        summary="Another program is already using port {port} of {host}.",
        fix="Stop the program that uses the port, or choose another with --port.",
        look="ss -ltnp",
        line=True,
        deadly=True,
    ),
    Cause(
        family="port",
        name="address-in-use",
        signs=("address already in use", "[errno 98]", "eaddrinuse", "port is already allocated", "already in use",
               "ports are not available", "only one usage of each socket address",
               "failed to listen on any local network address", "could not find open port", "errno: 98"),
        pattern=r"^(?!.{0,200}NCCL).{0,300}?(?:address|port|bind|listen|socket|EADDRINUSE|errno:? 98).{0,200}|98",
        summary="Another program is already using this address and port.",
        fix="Stop the program that uses the port, or choose another with --port.",
        look="ss -ltnp",
        line=True,
    ),
    Cause(
        family="port",
        name="address-not-here",
        signs=("cannot assign requested address", "[errno 99]", "eaddrnotavail"),
        summary="The address to listen on does not belong to this machine.",
        fix="Listen on 0.0.0.0, or on one of this machine's addresses.",
        look="ip -brief address",
        line=True,
    ),
    Cause(
        family="port",
        name="ipc-folder-missing",
        signs=("no such file or directory for ipc path",),
        pattern=r"for ipc path \"(?P<folder>/[^\"\n]{1,300})/[^/\"\n]{1,100}\"",
        summary="The folder for the sockets between the engine's processes does not exist: {folder}.",
        fix="Make the folder, or correct VLLM_RPC_BASE_PATH.",
        command="mkdir -p {folder}",
    ),
)  # fmt: skip
