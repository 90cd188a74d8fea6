"""The address is in use, or is not this machine's."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="port",
        name="address-in-use",
        signs=("address already in use", "[errno 98]", "eaddrinuse", "port is already allocated", "already in use",
               "ports are not available", "only one usage of each socket address",
               "failed to listen on any local network address", "could not find open port", "errno: 98"),
        pattern=r"^(?!.{0,200}NCCL).{0,300}?(?:address|port|bind|listen|socket|EADDRINUSE|errno:? 98).{0,200}|98",
        summary="Another program already listens on this address and port.",
        fix="End the program that holds the port, or choose another with --port.",
        command="ss -ltnp",
        line=True,
    ),
    Cause(
        family="port",
        name="address-not-here",
        signs=("cannot assign requested address", "[errno 99]", "eaddrnotavail"),
        summary="The address to listen on is not one of this machine's.",
        fix="Listen on 0.0.0.0, or on an address that this machine has.",
        command="ip -brief address",
        line=True,
    ),
)  # fmt: skip
