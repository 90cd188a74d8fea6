"""Failures of vLLM by what a site's own wrapper around it adds: certificates, adapters, templates, sockets, logging,
plug-ins. No profile may set these, so their fix names the flag or the variable, and patches nothing."""

from __future__ import annotations

from tests.bench.faults import spoiling
from tests.bench.faults.fault import Expect, Fault

CERTIFICATE = ("--ssl-certfile={model}/site.crt", "--ssl-keyfile={model}/site.key")
ADAPTER = ("--enable-lora", "--lora-modules=mine={model}/adapter")
LONG_SOCKET = f"--uds=/tmp/{'socket' * 20}"

VLLM_SITE: tuple[Fault, ...] = (
    # -- flags ---------------------------------------------------------------------------------------------------------
    Fault("a flag spelt the British way", "vllm", "start",
          Expect(("gpu-memory-utilisation",), family="config", causes=("unknown-argument",)),
          added=("--gpu-memory-utilisation=0.5",)),
    Fault("a port that is a word", "vllm", "start",
          Expect(("--port",), family="config", causes=("argument-value",)),
          added=("--port=http",)),
    Fault("no draft model", "vllm", "start",
          Expect(("/nowhere/draft",), family="config|model-config|offline", causes=("no-config-file",)),
          added=('--speculative-config={"model": "/nowhere/draft", "num_speculative_tokens": 2}',)),
    # -- TLS and sockets -----------------------------------------------------------------------------------------------
    Fault("no certificate", "vllm", "start",
          Expect(("ssl-certfile|certificate",), family="config", causes=("tls-missing",)),
          added=CERTIFICATE),
    Fault("a certificate that is none", "vllm", "start",
          Expect(("ssl-certfile|certificate",), family="config", causes=("tls-unparsable",)),
          added=CERTIFICATE, late=spoiling.texts({"site.crt": "no certificate\n", "site.key": "no key\n"})),
    Fault("a socket with too long a name", "vllm", "start",
          Expect(("AF_UNIX|too long", "uds"), family="port|config", causes=("socket-too-large",)),
          added=(LONG_SOCKET,)),
    Fault("no folder for the engine's sockets", "vllm", "start",
          Expect(("/nowhere/rpc",), family="port|config|host", causes=("ipc-folder-missing",)),
          variables={"VLLM_RPC_BASE_PATH": "/nowhere/rpc"}),
    # -- adapters and templates ----------------------------------------------------------------------------------------
    Fault("no adapter", "vllm", "start",
          Expect(("/nowhere/adapter",), family="config", causes=("adapter-missing",)),
          added=("--enable-lora", "--lora-modules=mine=/nowhere/adapter")),
    Fault("an adapter whose settings are cut", "vllm", "start",
          Expect(("adapter",), family="config", causes=("adapter-unparsable",)),
          added=ADAPTER, late=spoiling.texts({"adapter/adapter_config.json": '{"peft_type": "LORA", "r": 8'})),
    Fault("no chat template", "vllm", "start",
          Expect(("/nowhere/mine.jinja",), family="config|model-config", causes=("no-chat-template-file",)),
          added=("--chat-template=/nowhere/mine.jinja",)),
    # -- logging, plug-ins, variables ----------------------------------------------------------------------------------
    Fault("no configuration of the log", "vllm", "start",
          Expect(("/nowhere/log.json",), family="config", causes=("logging-missing",)),
          variables={"VLLM_LOGGING_CONFIG_PATH": "/nowhere/log.json"}),
    Fault("logs of torch that do not exist", "vllm", "start",
          Expect(("nonsense|TORCH_LOGS",), family="config", causes=("unrecognised",)),
          variables={"TORCH_LOGS": "nonsense"}),
    Fault("middleware that cannot be imported", "vllm", "start",
          Expect(("acme", "middleware"), family="config", causes=("setting-not-importable",)),
          added=("--middleware=acme.guard.Guard",)),
    Fault("a timeout that is a word", "vllm", "start",
          Expect(("VLLM_HTTP_TIMEOUT_KEEP_ALIVE|soon",), family="config", causes=("unrecognised",)),
          variables={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "soon"}),
)  # fmt: skip
