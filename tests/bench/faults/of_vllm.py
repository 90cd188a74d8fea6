"""Failures of vLLM that nothing could know before it was started."""

from __future__ import annotations

import signal
from typing import Any

from tests.bench.faults import acts, spoiling
from tests.bench.faults.fault import Expect, Fault

# vLLM tells nobody what its process died of; who killed it depends on whether the kernel counts its kills here.
KILLED = Expect(("killed|died",), family="memory|host", causes=("killed", "killed-from-outside"))
STOPPED = Expect((r"stopped \(SIGSTOP\)",), family="hang", causes=("stopped", "no-progress", "waits-for-worker"))


def arguments(**values: Any) -> dict[str, Any]:
    return {"vllm.extra-args": {name.replace("_", "-"): value for name, value in values.items()}}


OF_VLLM: tuple[Fault, ...] = (
    Fault("config.json replaced by another model's", "vllm", "start",
          Expect(("UnheardOfForCausalLM|unheard_of",), family="model-config", causes=("architecture-not-supported",)),
          late=spoiling.config(architectures=["UnheardOfForCausalLM"], model_type="unheard_of"), bare=()),
    Fault("an unknown tool parser", "vllm", "start",
          Expect(("llama9",), family="config", causes=("parser-name",),
                 patch=("vllm.extra-args.tool-call-parser",)),
          profile=arguments(enable_auto_tool_choice=True, tool_call_parser="llama9"),
          bare=("--enable-auto-tool-choice", "--tool-call-parser=llama9")),
    Fault("an unknown load format", "vllm", "start",
          Expect(("quick",), family="config", causes=("argument-value",)),
          profile=arguments(load_format="quick"), bare=("--load-format=quick",)),
    Fault("an unknown compilation level", "vllm", "start",
          Expect(("compilation-config",), family="config", causes=("argument-value", "setting-refused",)),
          profile=arguments(compilation_config='{"mode": 99}'), bare=('--compilation-config={"mode": 99}',)),
    Fault("nonsensical config overrides", "vllm", "start",
          Expect(("shape does not match",), family="weights", causes=("weight-shape",)),
          profile=arguments(hf_overrides='{"hidden_size": 250}'), bare=('--hf-overrides={"hidden_size": 250}',)),
    Fault("too few cache blocks for one request", "vllm", "start",
          Expect(("left for the KV cache|too small for one request",), family="memory",
                 causes=("cache-too-small", "no-room-for-cache"),
                 patch=("vllm.extra-args.num-gpu-blocks-override",)),
          profile=arguments(num_gpu_blocks_override=1), bare=("--num-gpu-blocks-override=1",)),
    Fault("the weights are overwritten after preflight", "vllm", "start",
          Expect(("damaged",), family="weights", causes=("safetensors-damaged",)),
          late=spoiling.garble, bare=()),
    Fault("the weights are deleted after preflight", "vllm", "start",
          Expect(("contains no weights",), family="weights", causes=("no-weights",)),
          late=spoiling.remove(spoiling.WEIGHTS), by_hand=True, bare=()),
    Fault("killed during the start", "vllm", "start", KILLED, act=acts.while_starting(signal.SIGKILL)),
    Fault("killed while serving", "vllm", "serving", KILLED, act=acts.while_serving(signal.SIGKILL)),
    Fault("out of memory in a step", "vllm", "serving",
          Expect(("not have enough memory|out of memory",), family="memory", causes=("host-out-of-memory",)),
          act=acts.hook("step-raises", asks=True)),
    Fault("stopped while serving", "vllm", "serving", STOPPED, act=acts.while_serving(signal.SIGSTOP),
          measure="stopped"),
)  # fmt: skip
