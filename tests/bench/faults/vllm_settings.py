"""Failures of vLLM by what a profile hands to it: flags that Python, argparse, pydantic or a library refuses, values
that no part of the engine knows, and variables of its environment."""

from __future__ import annotations

from typing import Any

from tests.bench.faults.fault import Expect, Fault
from tests.bench.faults.of_vllm import arguments

EXTRA = "vllm.extra-args"
VARIABLE = "vllm.environment"


def variables(**values: str) -> dict[str, Any]:
    return {VARIABLE: values}


VLLM_SETTINGS: tuple[Fault, ...] = (
    # -- names that the engine does not know ---------------------------------------------------------------------------
    Fault("an unknown reasoning parser", "vllm", "start",
          Expect(("deepthink9",), family="config", causes=("parser-name",), patch=(f"{EXTRA}.reasoning-parser",)),
          profile=arguments(reasoning_parser="deepthink9"), bare=("--reasoning-parser=deepthink9",)),
    Fault("an unknown tokenizer mode", "vllm", "start",
          Expect(("fast9",), family="config|model-config", causes=("tokenizer-check-failed",),
                 patch=(f"{EXTRA}.tokenizer-mode",)),
          profile=arguments(tokenizer_mode="fast9")),
    Fault("an unknown way to pool", "vllm", "start",
          Expect(("MEDIAN",), family="config", causes=("argument-value",), patch=(f"{EXTRA}.pooler-config",)),
          profile=arguments(runner="pooling", pooler_config='{"pooling_type": "MEDIAN"}')),
    Fault("an unknown backend of structured output", "vllm", "start",
          Expect(("grammarly",), family="config", causes=("argument-value",),
                 patch=(f"{EXTRA}.structured-outputs-config",)),
          profile=arguments(structured_outputs_config='{"backend": "grammarly"}')),
    Fault("an unknown mode of CUDA graphs", "vllm", "start",
          Expect(("SOMETIMES",), family="config", causes=("unrecognised",), patch=(f"{EXTRA}.compilation-config",)),
          profile=arguments(compilation_config='{"cudagraph_mode": "SOMETIMES"}')),
    Fault("an optimisation level of nine", "vllm", "start",
          Expect(("optimization-level", "9"), family="config", causes=("setting-refused",),
                 patch=(f"{EXTRA}.optimization-level",)),
          profile=arguments(optimization_level=9)),
    # -- numbers out of bounds -----------------------------------------------------------------------------------------
    Fault("a stream interval of zero", "vllm", "start",
          Expect(("stream.interval",), family="config", causes=("setting-refused",),
                 patch=(f"{EXTRA}.stream-interval",)),
          profile=arguments(stream_interval=0)),
    Fault("a negative number of logprobs", "vllm", "start",
          Expect(("max.logprobs",), family="config", causes=("setting-refused",), patch=(f"{EXTRA}.max-logprobs",)),
          profile=arguments(max_logprobs=-5)),
    Fault("a negative amount of offloaded weights", "vllm", "start",
          Expect(("cpu.offload.gb",), family="config", causes=("setting-refused",), patch=(f"{EXTRA}.cpu-offload-gb",)),
          profile=arguments(cpu_offload_gb=-1)),
    Fault("no replica at all", "vllm", "start",
          Expect(("data.parallel.size",), family="config", causes=("setting-refused",),
                 patch=(f"{EXTRA}.data-parallel-size",)),
          profile=arguments(data_parallel_size=0)),
    Fault("a threshold beyond the context", "vllm", "start",
          Expect(("long.prefill.token.threshold",), family="config", causes=("setting-refused",),
                 patch=(f"{EXTRA}.long-prefill-token-threshold",)),
          profile=arguments(long_prefill_token_threshold=100000)),
    # -- settings that do not go together ------------------------------------------------------------------------------
    Fault("more sequences than tokens in a step", "vllm", "start",
          Expect(("max.num.seqs", "64"), family="config", causes=("batched-tokens-too-few",),
                 patch=("max-num-batched-tokens",)),
          profile={"max-num-batched-tokens": 32, "max-num-seqs": 64}),
    Fault("a step smaller than a prompt in one piece", "vllm", "start",
          Expect(("max.num.batched.tokens", "512"), family="config", causes=("batched-tokens-too-few",),
                 patch=("max-num-batched-tokens",)),
          profile=arguments(enable_chunked_prefill=False) | {"max-num-batched-tokens": 128}),
    Fault("tools without a parser", "vllm", "start",
          Expect(("tool-call-parser",), family="config", causes=("parser-name",),
                 patch=(f"{EXTRA}.enable-auto-tool-choice",)),
          profile=arguments(enable_auto_tool_choice=True)),
    Fault("context parallelism that does not divide", "vllm", "start",
          Expect(("decode.context.parallel|dcp_size", "3"), family="config", causes=("arguments-refused",),
                 patch=(f"{EXTRA}.decode-context-parallel-size",)),
          profile=arguments(decode_context_parallel_size=3)),
    Fault("rebalancing experts that are not there", "vllm", "start",
          Expect(("eplb",), family="config", causes=("setting-refused",), patch=(f"{EXTRA}.enable-eplb",)),
          profile=arguments(enable_eplb=True)),
    Fault("a quantisation that the checkpoint does not have", "vllm", "start",
          Expect(("awq",), family="quant-dtype", causes=("quantisation-unknown",), patch=(f"{EXTRA}.quantization",)),
          profile=arguments(quantization="awq"), bare=("--quantization=awq",)),
    # -- what replaces the model's own values --------------------------------------------------------------------------
    Fault("a rope type that does not exist", "vllm", "start",
          Expect(("spiral",), family="model-config", causes=("rope",), patch=(f"{EXTRA}.hf-overrides",)),
          profile=arguments(hf_overrides='{"rope_parameters": {"rope_type": "spiral", "rope_theta": 10000.0}}')),
    Fault("an unknown activation", "vllm", "start",
          Expect(("blip",), family="model-config", causes=("model-unsupported",), patch=(f"{EXTRA}.hf-overrides",)),
          profile=arguments(hf_overrides='{"hidden_act": "blip"}')),
    Fault("a smaller vocabulary than the weights have", "vllm", "start",
          Expect(("vocab_size", "300"), family="weights", causes=("weights-check-failed",),
                 patch=(f"{EXTRA}.hf-overrides",)),
          profile=arguments(hf_overrides='{"vocab_size": 300}')),
    Fault("more layers than the weights have", "vllm", "start",
          Expect((r"layers\.[23]\.",), family="weights", causes=("weight-missing",), patch=(f"{EXTRA}.hf-overrides",)),
          profile=arguments(hf_overrides='{"num_hidden_layers": 4}')),
    # -- packages that a setting needs ---------------------------------------------------------------------------------
    Fault("Tensorizer without its package", "vllm", "start",
          Expect(("tensorizer",), family="abi", causes=("package-missing",), patch=(f"{EXTRA}.load-format",)),
          profile=arguments(load_format="tensorizer")),
    Fault("fastsafetensors without its package", "vllm", "start",
          Expect(("fastsafetensors",), family="abi", causes=("package-missing",), patch=(f"{EXTRA}.load-format",)),
          profile=arguments(load_format="fastsafetensors")),
    # -- variables of the environment ----------------------------------------------------------------------------------
    Fault("processors that are no numbers", "vllm", "start",
          Expect(("VLLM_CPU_OMP_THREADS_BIND",), family="config", causes=("environment-refused", "unrecognised"),
                 patch=(f"{VARIABLE}.VLLM_CPU_OMP_THREADS_BIND",)),
          profile=variables(VLLM_CPU_OMP_THREADS_BIND="zebra")),
    Fault("an unknown network interface", "vllm", "start",
          Expect(("eth9",), family="nccl|config", causes=("no-interface",),
                 patch=(f"{VARIABLE}.GLOO_SOCKET_IFNAME",)),
          profile=variables(GLOO_SOCKET_IFNAME="eth9")),
)  # fmt: skip
