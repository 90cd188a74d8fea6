"""What counts as a server's processor time, how a failed start is told, and how servers end."""

from __future__ import annotations

import subprocess
import sys

import psutil
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


def test_a_bench_that_is_told_to_end_twice_ends_its_servers() -> None:
    """As `timeout` tells it."""
    script = (
        "import subprocess, sys, time\n"
        "from tests.running import end, exit_on_term\n"
        "exit_on_term()\n"
        "server = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "try:\n"
        "    print(server.pid, flush=True)\n"
        "    time.sleep(60)\n"
        "finally:\n"
        "    print('ending', flush=True)\n"
        "    time.sleep(0.3)\n"
        "    end(server)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        server = int(bench.stdout.readline())
        bench.terminate()
        assert bench.stdout.readline() == "ending\n"
        bench.terminate()
        assert bench.wait(20) == 143
    assert not psutil.pid_exists(server)
