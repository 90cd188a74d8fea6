"""What a log may be as a file: packed, in another encoding, with holes, longer than memory, or no log at all."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance.diagnosis import log_bytes, log_text
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.diagnose_command import diagnose as diagnose_command
from appliance.diagnosis.log_bytes import NotTextError, text_pieces
from appliance.diagnosis.log_text import read_log
from tests.diagnosis import made_up_logs as logs

NOISE = "INFO 11-20 10:02:11 [core.py:12] nothing to see here, step {}, request {:08x}\n"
MB = 1 << 20


def utf(encoding: str, mark: bytes = b"") -> Callable[[str], bytes]:
    return lambda text: mark + text.encode(encoding)


READABLE: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "utf-8 with a mark": utf("utf-8", codecs.BOM_UTF8),
    "utf-16 le": utf("utf-16-le", codecs.BOM_UTF16_LE),
    "utf-16 be": utf("utf-16-be", codecs.BOM_UTF16_BE),
    "utf-16 without a mark": utf("utf-16-le"),
    "utf-16 le of few NULs, without a mark": lambda text: ("INFO 模型加载失败请检查\n" * 900 + text).encode(
        "utf-16-le"
    ),
    "utf-16 be of few NULs, without a mark": lambda text: ("INFO 模型加载失败请检查\n" * 900 + text).encode(
        "utf-16-be"
    ),
    "utf-32 le": utf("utf-32-le", codecs.BOM_UTF32_LE),
    "utf-32 be": utf("utf-32-be", codecs.BOM_UTF32_BE),
    "windows line ends": lambda text: text.replace("\n", "\r\n").encode(),
    "carriage returns only": lambda text: text.replace("\n", "\r").encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "bzip2": lambda text: bz2.compress(text.encode()),
    "xz": lambda text: lzma.compress(text.encode()),
    "gzip, cut off": lambda text: gzip.compress((text + random.Random(1).randbytes(99_999).hex()).encode())[:-9000],
    "utf-16 in gzip": lambda text: gzip.compress(codecs.BOM_UTF16_LE + text.encode("utf-16-le")),
    "a hole before it": lambda text: bytes(3 * MB) + text.encode(),
    "a hole within it": lambda text: ("INFO before\n" * 3).encode() + bytes(70_000) + text.encode(),
    "a log in latin-1": lambda text: ("INFO für Ärzte\n" * 40 + text).encode("latin-1"),
}


@pytest.mark.parametrize("form", READABLE)
def test_a_log_is_read_in_whatever_form_it_was_kept(form: str, tmp_path: Path) -> None:
    """Each holds the same failure."""
    path = tmp_path / "engine.log"
    path.write_bytes(READABLE[form](logs.VLLM_WORKERS))
    assert diagnose(read_log(path)).cause == "gpu-out-of-memory"


ELF = b"\x7fELF\x02\x01\x01\0" + bytes(range(256)) * 300
UNREADABLE: dict[str, bytes] = {
    "random bytes": random.Random(3).randbytes(100_000),
    "a few random bytes": random.Random(4).randbytes(200),
    "a program": ELF,
    "zstd": b"\x28\xb5\x2f\xfd" + random.Random(5).randbytes(500),
    "zip": b"PK\x03\x04" + random.Random(5).randbytes(500),
    "damaged gzip": b"\x1f\x8b" + b"\0\1" * 500,
    "a program in gzip": gzip.compress(ELF),
    "utf-32 without a mark": logs.VLLM_WORKERS.encode("utf-32-le"),
    "text and then bytes": b"INFO hello\n" * 20 + random.Random(6).randbytes(60_000),
}


@pytest.mark.parametrize("form", UNREADABLE)
def test_what_is_no_log_is_refused(form: str, tmp_path: Path) -> None:
    """With status 2, never as a log without a failure."""
    path = tmp_path / "engine.log"
    path.write_bytes(UNREADABLE[form])
    result = CliRunner(env={"INGOT_HOME": str(tmp_path)}).invoke(diagnose_command, [str(path), "--json"])
    assert result.exit_code == 2
    with pytest.raises(NotTextError):
        read_log(path)


def test_a_bomb_is_not_unpacked_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes that unpack to gigabytes take neither the memory nor the time."""
    monkeypatch.setattr(log_bytes, "MAX_UNPACKED_BYTES", 16 * MB)
    path = tmp_path / "engine.log.gz"
    path.write_bytes(gzip.compress(b"a" * (64 * MB)))
    tracemalloc.start()
    with pytest.raises(NotTextError):
        for _ in text_pieces(path):
            pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * MB


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    """From standard input, packed too."""
    data = gzip.compress(logs.VLLM_WORKERS.encode())
    result = CliRunner(env={"INGOT_HOME": str(tmp_path)}).invoke(diagnose_command, ["-", "--json"], input=data)
    assert json.loads(result.output)["cause"] == "gpu-out-of-memory"


# ----------------------------------------------------------------------------------------------------------------------
# Longer than memory
# ----------------------------------------------------------------------------------------------------------------------


def long_log(path: Path, middle: str, megabytes: int = 24, noise: str = NOISE) -> int:
    """`middle` stands between two halves of noise; the number of lines before it."""
    rng = random.Random(7)
    half = [noise.format(n, rng.getrandbits(32)) for n in range(megabytes * MB // 2 // len(noise))]
    with path.open("w") as file:
        file.writelines(half)
        file.write(middle)
        file.writelines(half)
    return len(half)


MIDDLE = (
    ("NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.\n", "gpu-hardware", 1),
    (("(EngineCore pid=7) INFO 11-20 10:02:11 [core.py:1] hello\n(APIServer pid=40) RuntimeError: Engine core "
     "initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}\n"), "killed", 2),
    ("[99.1] Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:1kB\n", "oom-killed", 1),
    ("*** SIGBUS received at time=1692931519 on cpu 3 ***\n", "bus-error", 1),
    (logs.VLLM_WORKERS, "gpu-out-of-memory", 9),
)  # fmt: skip


@pytest.mark.parametrize(("middle", "cause", "line"), MIDDLE, ids=[row[1] for row in MIDDLE])
def test_what_happened_in_the_middle_of_a_long_log_is_found(middle: str, cause: str, line: int, tmp_path: Path) -> None:
    """With its true line number."""
    path = tmp_path / "engine.log"
    before = long_log(path, middle)
    found = diagnose(read_log(path), exit_status=1)
    assert found.cause == cause
    assert before + line in [evidence.number for evidence in found.evidence]


def test_no_flood_of_errors_hides_how_it_ended(tmp_path: Path) -> None:
    """Each of the flood differs from all others, in more than its digits."""
    path = tmp_path / "engine.log"
    flood = "ERROR 11-20 10:02:11 [serving.py:12] request failed {} {:x}: unsupported\n"
    long_log(path, MIDDLE[0][0], noise=flood)
    lines = read_log(path)
    assert any("Xid" in line.text for line in lines)
    assert sum(len(line.text) for line in lines) < 12 * MB


def test_a_failure_after_readiness_is_kept_though_it_was_seen_before(tmp_path: Path) -> None:
    """The first start failed in the same way, and the second one served."""
    path = tmp_path / "engine.log"
    ready = "INFO:     Application startup complete.\n"
    before = long_log(path, "OSError: [Errno 28] No space left on device\n" + ready)
    with path.open("a") as file:
        file.write("OSError: [Errno 28] No space left on device\n")
        file.writelines(NOISE.format(n, n) for n in range(30_000))
    numbers = [line.number for line in read_log(path) if "Errno 28" in line.text or "startup" in line.text]
    assert numbers == [before + 1, before + 2, 2 * before + 3]


def test_the_excerpt_of_a_log_tells_the_same_as_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every log that the tests have."""
    path = tmp_path / "engine.log"
    texts = [value for name, value in vars(logs).items() if name.isupper() and "\n" in value]
    for text in texts:
        long_log(path, text, megabytes=9)
        monkeypatch.setattr(log_text, "WHOLE_BYTES", 8 * MB)
        part = diagnose(read_log(path), exit_status=1)
        monkeypatch.setattr(log_text, "WHOLE_BYTES", 80 * MB)
        whole = diagnose(read_log(path), exit_status=1)
        assert (part.family, part.cause, part.evidence) == (whole.family, whole.cause, whole.evidence)


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    """And the one after it is read, under its number."""
    path = tmp_path / "engine.log"
    path.write_bytes(b"INFO start\n" + b"x" * (20 * MB) + b"\nOSError: [Errno 98] Address already in use\n")
    lines = read_log(path)
    assert [line.number for line in lines] == [1, 2, 3]
    assert len(lines[1].text) < MB
    assert diagnose(lines).cause == "address-in-use"


def test_a_hundred_megabytes_take_little_memory_and_time(tmp_path: Path) -> None:
    """The first error stands a third of the way in."""
    path = tmp_path / "engine.log"
    noise = "INFO 11-20 10:02:11 [core.py:12] nothing to see here, step 123456\n" * 20_000
    blocks = (100 << 20) // len(noise)
    with path.open("w") as file:
        for block in range(blocks):
            file.write(noise)
            if block == blocks // 3:
                file.write(logs.VLLM_WORKERS)
    began = time.process_time()
    found = diagnose(read_log(path), exit_status=1)
    took = time.process_time() - began
    tracemalloc.start()
    read_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.cause == "gpu-out-of-memory"
    assert found.evidence[-1].number == (blocks // 3 + 1) * 20_000 + 9
    assert peak < 64 * MB
    assert took < 15
