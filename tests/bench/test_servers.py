"""What counts as a server's processor time, and how a failed start is told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.bench.servers import Server, processor_s


def test_processes_that_a_server_started_count_whatever_their_group():
    """The engine core is in a session of its own. The kernel tells its time in hundredths, rounded down."""
    burn = "import sys, time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\nsys.stdin.read()"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        server.stdout.readline()
        assert processor_s(server.pid) >= 0.3
        server.stdin.close()


def test_a_server_that_ends_while_it_starts_leaves_its_last_words(tmp_path):
    server = Server("It", "m", [sys.executable, "-c", "print('no such model')"], {}, tmp_path / "log")
    with pytest.raises(RuntimeError, match="no such model"):
        server.start()
    server.end()
