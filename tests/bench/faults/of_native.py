"""Failures of the native engine that nothing could know before it was started."""

from __future__ import annotations

import signal

from tests.bench.faults import acts, spoiling
from tests.bench.faults.fault import Expect, Fault

# Who killed it depends on whether the kernel counts its kills here.
KILLED = Expect(("SIGKILL",), family="memory|host", causes=("killed", "killed-from-outside"))
STOPPED = Expect((r"stopped \(SIGSTOP\)",), family="hang", causes=("stopped", "no-progress", "waits-for-worker"))

OF_NATIVE: tuple[Fault, ...] = (
    Fault("the weights are deleted after preflight", "native", "start",
          Expect((r"model\.safetensors",), family="weights",
                 causes=("weight-file-missing", "model-changed-after-check")),
          late=spoiling.remove(spoiling.WEIGHTS)),
    Fault("the weights are overwritten after preflight", "native", "start",
          Expect(("damaged",), family="weights", causes=("safetensors-damaged",)),
          late=spoiling.garble),
    Fault("the weights shrink after preflight", "native", "start",
          Expect((r"weight file",), family="weights", causes=("safetensors-damaged",)),
          late=spoiling.cut(spoiling.WEIGHTS), by_hand=True),
    Fault("every weight is NaN", "native", "start",
          Expect(("not a number",), family="weights", causes=("self-test-differs",)),
          model=spoiling.not_numbers, bare=()),
    Fault("a memory limit (ulimit -v)", "native", "start",
          Expect(("memory limit",), family="memory", causes=("host-out-of-memory",)),
          act=acts.limit_memory_at_start),
    Fault("killed during the start", "native", "start", KILLED, act=acts.while_starting(signal.SIGKILL)),
    Fault("stopped during the start", "native", "start", STOPPED, act=acts.while_starting(signal.SIGSTOP),
          measure="stopped"),
    Fault("killed while serving", "native", "serving", KILLED, act=acts.while_serving(signal.SIGKILL)),
    Fault("a crash in native code", "native", "serving",
          Expect(("segmentation fault",), family="kernel-crash", causes=("segmentation-fault",)),
          act=acts.while_serving(signal.SIGSEGV)),
    Fault("out of memory in a step", "native", "serving",
          Expect(("not have enough memory|out of memory",), family="memory", causes=("host-out-of-memory",)),
          act=acts.hook("step-raises", asks=True)),
    Fault("stopped while serving", "native", "serving", STOPPED, act=acts.while_serving(signal.SIGSTOP),
          measure="stopped"),
    Fault("alive but generates nothing", "native", "serving",
          Expect(("no token for",), family="hang", causes=("no-progress",)),
          act=acts.hook("generates-nothing", asks=False), measure="silent"),
)  # fmt: skip
