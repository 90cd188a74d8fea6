"""Schemathesis: requests made from /openapi.json, right and wrong ones. No answer may be an error of the server, or
other than the document says. Runs in its own venv, for INGOT_FUZZ_SECONDS (60; 1200 to be sure)."""

import os
import re
import subprocess
import sys
from pathlib import Path

URL = os.environ["INGOT_URL"]
SECONDS = int(os.environ.get("INGOT_FUZZ_SECONDS", "60"))
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
ENDLESS = "/appliance/events"  # a stream that lasts as long as the engine


def test_every_answer_is_one_of_the_document(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    command = [str(program), "--no-color", "run", f"{URL}/openapi.json", "--checks", CHECKS, "--exclude-path", ENDLESS]
    # An answer that ignores its end goes on until the context is full.
    command += ["--phases", "coverage,fuzzing", "--max-time", str(SECONDS), "--request-timeout", "300"]
    done = subprocess.run([*command, "--continue-on-failure"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) generated", done.stdout)[1]) > SECONDS
