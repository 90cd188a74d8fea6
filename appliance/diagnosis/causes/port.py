"""The address is in use."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="port",
        name="address-in-use",
        pattern=r"Address already in use|\[Errno 98\]|EADDRINUSE",
        summary="Another program already listens on this address and port.",
        fix="End the program that holds the port, or choose another with --port.",
        command="ss -ltnp",
    ),
)
