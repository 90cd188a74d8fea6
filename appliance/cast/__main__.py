"""`python -m appliance.cast cast|verify`: the commands where Ingot itself is not installed."""

from __future__ import annotations

import click

from appliance.cast.cast_command import cast
from appliance.cast.verify import verify

commands = click.Group("appliance.cast", commands={"cast": cast, "verify": verify})

if __name__ == "__main__":
    commands(prog_name="python -m appliance.cast")
