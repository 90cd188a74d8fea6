"""From a log to its cause: the first exception, the family, the evidence by line, a fix."""

from __future__ import annotations

import random
import time

import pytest

from appliance.core_protocol import Fatal
from appliance.diagnosis.causes import CATALOGUE
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.first_exception import first_exception
from appliance.diagnosis.log_text import number_lines

OOM = """\
INFO loading weights
Traceback (most recent call last):
  File "/app/engine/weights.py", line 40, in load
    tensor = torch.empty(shape, device="cuda:0")
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 23.56 GiB of \
which 0.32 GiB is free.

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/engine/core.py", line 9, in run
    load()
RuntimeError: Engine core initialization failed. See root cause above.
"""

PREFIXED = """\
(Worker pid=7) ERROR 11-20 10:02:11 [core.py:12] Traceback (most recent call last):
(Worker pid=8) INFO 11-20 10:02:11 [core.py:99] Something else entirely
(Worker pid=7) ERROR 11-20 10:02:12 [core.py:12]   File "/app/x.py", line 3, in f
(Worker pid=8) INFO 11-20 10:02:12 [core.py:99] ValueError: not this one
(Worker pid=7) ERROR 11-20 10:02:12 [core.py:12]     raise KeyError('model.embed_tokens.weight')
(Worker pid=7) ERROR 11-20 10:02:13 [core.py:12] KeyError: 'model.embed_tokens.weight'
"""


def test_the_first_exception_of_a_chain_with_its_numbers() -> None:
    """Its own line and frame are the evidence; what it said is in the summary; the fix can be applied."""
    found = diagnose(number_lines(OOM), exit_status=1)
    assert (found.family, found.cause) == ("memory", "gpu-out-of-memory")
    assert all(figure in found.summary for figure in ("1.50 GiB", "23.56 GiB", "0.32 GiB"))
    assert [line.number for line in found.evidence] == [3, 5]
    assert found.fix is not None
    assert found.fix.patch is None
    found = diagnose(number_lines(OOM), exit_status=1, profile={"gpu-memory-utilization": 0.6})
    assert found.fix is not None
    assert found.fix.patch == {"gpu-memory-utilization": 0.5}


def test_an_interleaved_traceback_is_followed_by_its_prefix() -> None:
    """Lines of other processes in between are not part of it."""
    exception = first_exception(number_lines(PREFIXED))
    assert exception is not None
    assert exception.headline == "KeyError: 'model.embed_tokens.weight'"
    assert exception.line.number == 6
    assert diagnose(number_lines(PREFIXED)).family == "weights"


def test_a_pointer_is_reported_only_when_there_is_nothing_else() -> None:
    """Better "see above" than nothing, where the log begins too late."""
    (*_, last) = OOM.split("\n\n")
    exception = first_exception(number_lines(last))
    assert exception is not None
    assert exception.type == "RuntimeError"


@pytest.mark.parametrize(
    ("line", "family"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", "memory"),
        (("RuntimeError: [enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory: you tried to "
         "allocate 99999 bytes. Error code 12 (Cannot allocate memory)"), "memory"),
        ("OSError: [Errno 12] Cannot allocate memory", "memory"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "weights"),
        ("KeyError: 'model.layers.3.mlp.up_proj.weight'", "weights"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/m/model-00002-of-00003.safetensors'", "weights"),
        ("ValueError: Model architectures ['FooForCausalLM'] are not supported for now.", "model-config"),
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "model-config"),
        ("OSError: [Errno 98] Address already in use", "port"),
        ("PermissionError: [Errno 13] Permission denied: '/models/x/config.json'", "permission"),
        ("OSError: [Errno 28] No space left on device", "host"),
        ("OSError: [Errno 24] Too many open files: 'x'", "host"),
        ("RuntimeError: can't start new thread", "host"),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check", "driver"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "driver"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "arch"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "kernel-crash"),
        ("ImportError: /x/_C.so: undefined symbol: _ZN3c104cuda", "abi"),
        ("ImportError: /lib/libc.so.6: version `GLIBC_2.34' not found (required by /x.so)", "abi"),
        ("ModuleNotFoundError: No module named 'zmq'", "abi"),
    ],
)  # fmt: skip
def test_known_causes(line: str, family: str) -> None:
    """Each with a summary without unfilled places, and a fix."""
    text = f'Traceback (most recent call last):\n  File "/x.py", line 1, in f\n    f()\n{line}\n'
    found = diagnose(number_lines(text), exit_status=1)
    assert found.family == family
    assert "{" not in found.summary
    assert found.fix is not None
    assert "{" not in found.fix.text + (found.fix.command or "")


@pytest.mark.parametrize(
    ("status", "family"), [(-9, "memory"), (-4, "kernel-crash"), (-11, "kernel-crash"), (-7, "weights"), (1, None)]
)
def test_a_death_without_a_word_is_reported_by_its_status(status: int, family: str | None) -> None:
    """And an unknown one says so, with the last lines."""
    found = diagnose(number_lines("INFO all is well\n"), exit_status=status)
    assert found.family == family
    if family is None:
        assert found.cause is None
        assert found.evidence[0].text == "INFO all is well"


def test_the_cores_own_account_wins_over_the_log() -> None:
    """A harmless traceback before does not mislead; the evidence is found in the log."""
    log = OOM + 'Traceback (most recent call last):\n  File "/y.py", line 2, in g\nLookupError: gone\n'
    told = 'Traceback (most recent call last):\n  File "/y.py", line 2, in g\nLookupError: gone\n'
    found = diagnose(number_lines(log), fatal=Fatal(exception="LookupError", message="gone", traceback=told))
    assert found.summary.endswith("LookupError: gone")
    assert [log.split("\n")[line.number - 1].strip() for line in found.evidence] == [
        line.text for line in found.evidence
    ]


def test_an_unknown_exception_is_shown_not_guessed() -> None:
    """No family, no cause, and what it said."""
    text = 'Traceback (most recent call last):\n  File "/x.py", line 1, in f\nfoo.BarError: the frobnicator\n'
    found = diagnose(number_lines(text), exit_status=1)
    assert (found.family, found.cause) == (None, None)
    assert "foo.BarError: the frobnicator" in found.summary


def test_truncated_and_shuffled_logs_never_break_it() -> None:
    """Whatever a log looks like, reading it ends, quickly, in a diagnosis."""
    rng = random.Random(7)
    lines = (OOM + PREFIXED).split("\n")
    began = time.process_time()
    for _ in range(500):
        part = lines[rng.randrange(len(lines)) :]
        rng.shuffle(part)
        text = "\n".join(part)[rng.randrange(20) :]
        assert diagnose(number_lines(text), exit_status=1).summary
    assert time.process_time() - began < 20


def test_a_megabyte_is_read_in_a_moment() -> None:
    """A healthy one, which matches nothing, is the slowest."""
    lines = number_lines("INFO 11-20 10:02:11 [core.py:12] nothing to see here, error rate 0\n" * 15_000)
    began = time.process_time()
    assert diagnose(lines, exit_status=0).family is None
    assert time.process_time() - began < 3


def test_every_cause_says_what_to_do() -> None:
    """Rows can be added without reading the machinery, but not without these."""
    for cause in CATALOGUE:
        groups = dict.fromkeys([*cause.compiled.groupindex, *cause.compiled_details.groupindex], "?")
        assert cause.summary_for(groups).rstrip("}").endswith((".", "?"))
        assert cause.fix_for(groups, {}).text.endswith(".")
        assert cause.family.islower()
        assert cause.signs or cause.where
        assert all(sign == sign.lower() for sign in cause.signs)
