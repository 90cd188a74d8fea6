"""vLLM as a person would start it: the command that Ingot renders, with nothing in front of it and nobody around it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance import hardware
from appliance.hardware.device import Device
from appliance.home import Home
from appliance.preflight import PreflightContext, Report, run
from appliance.preflight.surroundings import Surroundings
from appliance.profile import document as documents
from appliance.protocol import Severity
from appliance.vllm.command_line import Command, Place, render
from appliance.vllm.plan import VllmPlan
from appliance.vllm_program import find_program
from tests.vllm.provoked import Provoked, make_model
from tests.vllm.real import PROFILE, VLLM


@dataclass
class Ended:
    """`seconds` until vLLM had exited, which is when a person has its error on the screen."""

    log: Path
    exit_status: int
    seconds: float


def profile_of(case: Provoked) -> dict[str, Any]:
    # Nothing is compiled on the way to an error.
    base = documents.apply_patch(PROFILE, {"max-model-len": None, "model.path": "provoked", "enforce-eager": True})
    return documents.apply_patch(base, case.changes)


def preflight(case: Provoked, home: Home) -> Report:
    return run(
        PreflightContext(
            home=home,
            document=profile_of(case),
            environ={**os.environ, "INGOT_VLLM": VLLM},
            inventory=hardware.inventory(),
            surroundings=Surroundings.here(),
        )
    )


def errors(report: Report) -> list[str]:
    return [finding.id for finding in report.findings if finding.severity is Severity.ERROR]


def command_past_preflight(case: Provoked, home: Home, socket_path: Path, caches: Path) -> Command:
    """What Ingot would start, had preflight not refused it."""
    profile = documents.load(profile_of(case))
    program = find_program({"INGOT_VLLM": VLLM})
    device = Device(gpu=None, source="profile", why="the profile says so")
    plan = VllmPlan(
        profile=profile,
        folder=home.models / profile.model.path,
        device=device,
        program=program,
        config=None,
        effective=None,
    )
    return render(plan, Place(socket=socket_path, caches=caches))


def start(case: Provoked, home: Home, log: Path, caches: Path, timeout_s: float = 240.0) -> Ended:
    """Runs it to its end. A port that it is to fail on is held meanwhile."""
    make_model(home.models / "provoked", case)
    with tempfile.TemporaryDirectory(prefix="bare-") as folder, socket.create_server(("127.0.0.1", 0)) as held:
        command = command_past_preflight(case, home, Path(folder) / "s", caches)
        arguments = list(command.arguments)
        extra = [argument.format(port=held.getsockname()[1]) for argument in case.arguments]
        if any(argument.startswith("--port") for argument in extra):
            arguments = [argument for argument in arguments if not argument.startswith("--uds")]
        environment = command.whole_environment(os.environ) | case.environment
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*arguments, *extra], env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                status = process.wait(timeout_s)
            finally:
                seconds = time.monotonic() - began
                with contextlib.suppress(ProcessLookupError):  # what it left behind
                    os.killpg(process.pid, signal.SIGKILL)
    return Ended(log, status, seconds)
