"""A front door with a core of the test's choice: `python -m tests.supervisor.door JSON`. Prints its address."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from appliance.address import listen
from appliance.engine_client.core import NativeCore
from appliance.home import Home
from appliance.serving.pages import ALLOWED_ORIGINS, AllowedOrigins
from appliance.serving.server import Options, serve


def main() -> int:
    arguments = json.loads(sys.argv[1])
    home = Home.at(arguments["home"]).create()
    listener = listen("127.0.0.1", 0)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    options = Options(
        home=home,
        host="127.0.0.1",
        allowed_origins=AllowedOrigins.of({ALLOWED_ORIGINS: arguments["allowed_origins"]}),
        profile_file=Path(arguments["profile"]),
        core_command=tuple(arguments["core"]),
        started=time.time(),
    )
    return serve(options, listener, NativeCore(options.core_command))


if __name__ == "__main__":
    sys.exit(main())
