"""Invalid settings of the launch: flags, values, environment variables."""

from appliance.diagnosis.cause import Cause, number

_VALIDATED = (
    r"^(?!.{0,2000}failed to be inspected).{0,300}?validation errors? for (?!validator |field )"
    r"(?P<config>\w{1,60})\s{1,6}"
    r"(?P<what>[\w.\[\]-]{0,60}\s{1,6})?"
)

_NOT_A_PARSER = (
    r"(?:(?:invalid|unknown|unsupported|unrecognized) {0}[ _-](?:call[ _-])?parser:? ['\"`]?(?P<value>[\w.-]{{1,60}})"
    r"|{0} (?:call )?parser:? ['\"`]?(?P<also>[\w.-]{{1,60}})['\"`]? (?:is )?(?:not (?:found|supported|registered)"
    r"|invalid|unknown))"
)

CAUSES = (
    Cause(
        family="config",
        name="workers-beyond-nodes",
        signs=("numa nodes to bind threads",),
        pattern=r"NUMA nodes to bind threads of (?P<size>\d{1,6}).{0,60}? nodes are \[(?P<nodes>[\d, ]{0,300})\]",
        summary="vLLM wants a NUMA node for each worker on a CPU: {size} workers were asked for, and the nodes are "
        "[{nodes}].",
        fix="Use one worker, or as many as there are nodes. VLLM_CPU_OMP_THREADS_BIND=nobind lets them share nodes.",
        patch={"tensor-parallel-size": None},
        sets={"tensor-parallel-size": "1"},
    ),
    Cause(
        family="config",
        name="command-twice",
        signs=("unrecognized arguments: serve ", "unrecognized arguments: vllm serve "),
        pattern=r"unrecognized arguments: (?P<words>(?:vllm )?serve \S{1,200})",
        summary="The command names `vllm serve` twice, as the image starts it already: {words}",
        fix="Leave `vllm serve` out of the container's command, and give only the model and its flags.",
        line=True,
    ),
    Cause(
        family="config",
        name="unknown-argument",
        signs=("unrecognized arguments", "no such option", "unknown option", "ambiguous option",
               "unexpected extra argument"),
        pattern=r"^(?!.{0,60}(?:nvcc|ptxas|ninja|cc1|gcc|g\+\+)).{0,200}?(?:unrecognized arguments|no such option"
        r"|unknown option|ambiguous option|extra argument)[s\W]{0,4}?[\s'\"(](?P<argument>[\w/.-]\S{0,200})",
        summary="The engine does not recognise the argument {argument}.",
        fix="Remove {argument}, or use this release's spelling.",
        line=True,
    ),
    Cause(
        family="config",
        name="unknown-argument",
        signs=("invalid argument:", "unknown argument:", "unexpected argument '"),
        pattern=r"\berror: (?:invalid|unknown|unexpected) argument:? '?(?P<argument>--?[a-z][\w-]{0,80})",
        summary="The engine does not recognise the argument {argument}.",
        fix="Remove {argument}, or use this release's spelling.",
        line=True,
    ),
    Cause(
        family="config",
        name="unknown-argument",
        signs=("args.__init__() got an unexpected keyword argument", "got an unexpected keyword argument"),
        pattern=r"\w{0,40}Args\.__init__\(\) got an unexpected keyword argument '(?P<argument>[\w-]{1,80})'",
        summary="The engine does not recognise the argument {argument}.",
        fix="Remove {argument}, or use this release's spelling.",
        line=True,
    ),
    Cause(
        family="config",
        name="argument-not-json",
        signs=("cannot be converted to <function loads", "invalid loads value"),
        pattern=r"argument (?P<argument>--?[\w-]{1,80})\S{0,40}: (?:value |invalid loads value: )"
        r"(?P<value>[^\n]{1,200}?)(?: cannot be converted|$)",
        summary="{argument} takes JSON, but was given {value}.",
        fix="Give {argument} as JSON with double quotes and single braces; in a shell, put all of it in single quotes.",
        line=True,
    ),
    Cause(
        family="config",
        name="argument-value",
        signs=("invalid choice", "expected one argument", "expected at least one argument", "arguments are required",
               "invalid int value", "invalid float value", "not allowed with argument", "invalid value",
               "error: argument", "invalid json string", "cannot be converted", "invalid loads value",
               "invalid parse_type value"),
        pattern=r"^(?:[^\n]{0,200}?error: )?(?:argument [^:\n]{1,80}: )?(?P<why>[^\n]{0,80}?(?:invalid|expected|ignored"
        r"|required"
        r"|not allowed|cannot be converted|validation error|must be|should be)[^\n]{0,160})",
        details=r"argument (?P<argument>--?[\w-]{1,80})",
        summary="Invalid command-line value ({argument}): {why}",
        fix="Correct the value, or remove the setting to use its default.",
        line=True,
    ),
    Cause(
        family="config",
        name="argument-value",
        signs=("error while handling argument",),
        pattern=r"error while handling argument .?(?P<argument>--?[\w-]{1,60}).?: (?:error: )?(?P<why>[^\n]{1,200})",
        summary="Invalid command-line value ({argument}): {why}.",
        fix="Give {argument} a value that it takes, or leave it out.",
        line=True,
    ),
    Cause(
        family="config",
        name="argument-value",
        signs=("load format", "load_format"),
        pattern=r"load.format:? [`'\"]?(?P<value>[\w-]{1,40})[`'\"]? is (?:not supported|unknown|invalid)"
        r"|(?:unknown|unsupported|invalid) load.format:? [`'\"]?(?P<also>[\w-]{1,40})",
        summary="The engine does not support the load format {value}.",
        fix="Remove load-format, so that the engine detects the format.",
        patch={"vllm.extra-args.load-format": None},
    ),
    Cause(
        family="config",
        name="batched-tokens-too-few",
        signs=("max_num_batched_tokens", "max-num-batched-tokens"),
        pattern=r"^(?!.{0,300}Input should be).{0,2000}?"
        r"max.num.batched.tokens.{0,20}?\(?(?P<tokens>\d{1,9})?\)?.{0,60}(?:smaller than|greater than or equal"
        r"|less than|must be).{0,60}?(?P<limit>\d{3,9})?",
        summary="max-num-batched-tokens is too small for the context length or the number of sequences.",
        fix="Remove max-num-batched-tokens, or reduce max-model-len to match it.",
        patch={"max-num-batched-tokens": None},
    ),
    Cause(
        family="config",
        name="more-gpus-than-there-are",
        signs=("larger than the number of available gpus", "world size", "invalid device ordinal",
               "tensor parallel size", "number of gpus", "gpus available", "visible devices", "available gpus",
               "cuda_error_invalid_device", "device_count", "num_gpus", "not enough gpus", "number of devices"),
        pattern=r"(?:(?:larger|greater|exceed|more) (?:than )?.{0,60}(?:gpus?|devices?)(?: \((?P<have>\d{1,9})\))?"
        r"|invalid device ordinal|error_invalid_device|device < num_gpus|not enough gpus|have enough gpus"
        r"|but only (?P<only>\d{1,9}))",
        summary="The profile asks for more GPUs than are available.",
        fix="Reduce tensor-parallel-size to the number of GPUs, and check CUDA_VISIBLE_DEVICES.",
        patch={"tensor-parallel-size": number("have")},
        look="nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES",
    ),
    Cause(
        family="config",
        name="expandable-segments",
        signs=("expandable segments", "expandable_segments", "pytorch_cuda_alloc_conf", "pytorch_alloc_conf",
               "unrecognized cachingallocator"),
        pattern=r"not (?:supported|compatible)|incompatib|unrecogni[sz]ed|unsupported|cannot|assert|invalid|disable"
        r"|please",
        summary="PYTORCH_CUDA_ALLOC_CONF has a setting that the engine does not support.",
        fix="Remove PYTORCH_CUDA_ALLOC_CONF from the environment.",
        patch={"vllm.environment.PYTORCH_CUDA_ALLOC_CONF": None},
    ),
    Cause(
        family="config",
        name="service-variable",
        signs=("tcp://",),
        pattern=r"(?:invalid literal for int\(\) with base 10: |VLLM_PORT )'(?P<value>tcp://[^'\n]{1,80})'",
        summary="Kubernetes has set VLLM_PORT to the address of a service ({value}); the engine expects a number.",
        fix="Rename the service so that it is not called vllm, or set enableServiceLinks: false in the pod.",
        unsets=("VLLM_PORT",),
    ),
    Cause(
        family="config",
        name="environment-value",
        signs=("vllm_", "invalid value", "environment variable", "sglang_", "cuda_visible_devices", "nccl_"),
        pattern=r"(?:invalid value '?(?P<value>[^'\n]{1,60})'? for (?P<variable>[A-Z][A-Z0-9_]{3,60})|(?P<also>(?:VLLM"
        r"|SGLANG|CUDA|NCCL|HF)_[A-Z0-9_]{3,60})\b.{0,60}(?:must be|is not a valid|invalid|not supported|should be"
        r"|is set to empty))",
        summary="An environment variable has an invalid value: {variable}.",
        fix="Remove the variable from the profile, or use one of the values listed in the message.",
        patch={"vllm.environment": None},
    ),
    Cause(
        family="config",
        name="parser-name",
        signs=("tool call parser", "tool-call-parser", "tool_call_parser", "tool_parser", "tool parser"),
        pattern=_NOT_A_PARSER.format("tool"),
        summary="This release has no tool-call parser named {value}.",
        fix="Choose a tool-call parser that the message lists, or remove it.",
        patch={"vllm.extra-args.tool-call-parser": None, "vllm.extra-args.enable-auto-tool-choice": None},
    ),
    Cause(
        family="config",
        name="parser-name",
        signs=("reasoning parser", "reasoning-parser", "reasoning_parser"),
        pattern=_NOT_A_PARSER.format("reasoning"),
        summary="This release has no reasoning parser named {value}.",
        fix="Choose a reasoning parser that the message lists, or remove it.",
        patch={"vllm.extra-args.reasoning-parser": None},
    ),
    Cause(
        family="config",
        name="parser-name",
        signs=("tool call parser", "tool-call-parser", "reasoning parser", "reasoning-parser", "tool_parser",
               "enable-auto-tool-choice", "tool parser"),
        pattern=r"invalid|not found|requires|unknown|must|not exist|error",
        summary="A tool-call or reasoning parser is missing, or does not fit the other settings.",
        fix="Correct it as the message says, or remove it.",
        patch={"vllm.extra-args.tool-call-parser": None, "vllm.extra-args.reasoning-parser": None,
               "vllm.extra-args.enable-auto-tool-choice": None},
        broad=True,
    ),
    Cause(
        family="config",
        name="tls-key-mismatch",
        signs=("key_values_mismatch", "key values mismatch"),
        summary="The TLS key does not belong to the certificate.",
        fix="Use the key with which this certificate was requested, or request a new certificate for this key.",
        look="openssl x509 -noout -pubkey -in CERTIFICATE | sha256sum; openssl pkey -pubout -in KEY | sha256sum",
        mute=True,
    ),
    Cause(
        family="config",
        name="lora-off",
        signs=("lora is not enabled", "lora not enabled"),
        summary="The launch names LoRA adapters, and LoRA is not turned on.",
        fix="Add --enable-lora, or start without --lora-modules.",
        sets={"enable_lora": True},
    ),
    Cause(
        family="config",
        name="python-variable",
        signs=("fatal python error",),
        pattern=r"Fatal Python error: \w{1,80}: (?P<variable>PYTHON[A-Z]{2,40}) (?P<why>must [^\n]{1,200})",
        summary="Python cannot start: {variable} {why}.",
        fix="Correct {variable} in the engine's environment, or remove it.",
        unsets=("{variable}",),
        line=True,
        deadly=True,
    ),
    Cause(
        family="config",
        name="lora-rank",
        signs=("lora rank",),
        pattern=r"LoRA rank (?P<rank>\d{1,5}) is greater than max_lora_rank (?P<most>\d{1,5})",
        summary="The LoRA adapter has rank {rank}, and the launch allows {most}.",
        fix="Set --max-lora-rank to {rank} or more, or start without the adapter.",
        sets={"max_lora_rank": "{rank}"},
    ),
    Cause(
        family="config",
        name="lora",
        signs=("lora rank", "max_lora_rank", "max_loras", "lora adapter", "lora_modules", "lora is not",
               "support lora", "enable_lora", "adapter_config.json", "lora_rank"),
        pattern=r"greater|exceed|not support|must|invalid|fail|missing|no such|not enabled|error|cannot",
        summary="A LoRA adapter does not match the engine's settings, or the model does not support adapters.",
        fix="Raise max-lora-rank to the adapter's rank, or remove the adapter.",
        broad=True,
    ),
    Cause(
        family="config",
        name="no-chat-template-file",
        signs=("appears path-like, but doesn't exist",),
        details=r"template string \((?P<path>[^()\n]{1,300})\)",
        summary="The chat template's file does not exist: {path}.",
        fix="Correct --chat-template, or remove it to use the model's own template.",
        look="ls -l {path}",
    ),
    Cause(
        family="config",
        name="speculative-decoding",
        signs=("speculative", "draft model", "num_speculative_tokens", "speculative_config", "eagle", "mtp",
               "spec_decode"),
        pattern=r"not support|must|invalid|unsupported|require|unknown|mismatch|cannot|should|missing|error",
        summary="The speculative decoding settings do not work with this model.",
        fix="Turn speculative decoding off.",
    ),
    Cause(
        family="config",
        name="task-not-for-model",
        signs=("does not support", "--task", "--runner", "--convert", "is not a generative model", "embedding model",
               "encoder-decoder", "not support pipeline parallel", "pipeline parallelism", "expert parallel"),
        pattern=r"(?:--?(?:task|runner|convert)\b.{0,80}(?:not|must|invalid)|does(?: not|n't) support (?:the )?(?:'|`"
        r"|--)?(?:task|runner|\w{1,60} (?:task|api|parallel|prefill|caching)|embedding|generat|pooling)"
        r"|pipeline parallel.{0,40}not|not support.{0,40}(?:pipeline|expert) parallel|encoder-decoder.{0,60}not)",
        summary="This model does not support a task or mode that the profile asks for.",
        fix="Remove the task, parallelism or caching setting from the profile.",
    ),
    Cause(
        family="config",
        name="fork",
        signs=("re-initialize cuda in forked subprocess", "finished its bootstrapping phase", "freeze_support"),
        summary="A worker process was forked after CUDA had been initialised.",
        fix="Set the start method of worker processes to spawn.",
        patch={"vllm.environment.VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    ),
    Cause(
        family="config",
        name="mount-or-name",
        signs=("bind source path does not exist", "invalid mount", "mounts denied", "container name",
               "not a directory: unknown", "undefined volume", "undefined network", "yaml:", "validating compose",
               "invalid reference format", "invalid compose", "services.", "are you trying to mount a directory"),
        pattern=r"does not exist|invalid|denied|already in use|not a directory|undefined|mapping|did not find|expected"
        r"|must be|additional propert|mount a directory",
        summary="The container's own configuration is wrong: a mount, a name or the compose file.",
        fix="Correct what the message points to.",
        look="docker compose config",
        line=True,
    ),
    Cause(
        family="config",
        name="setting-refused",
        signs=("validation error for", "validation errors for"),
        pattern=_VALIDATED + r"(?:Value error|Assertion failed), (?P<why>[^\[\n]{1,300})",
        summary="Invalid setting ({config}): {why}",
        fix="Correct the setting in the message, or remove it to use its default.",
        broad=True,
    ),
    Cause(
        family="config",
        name="setting-refused",
        signs=("validation error for", "validation errors for"),
        pattern=_VALIDATED + r"(?P<why>[^\[\n]{1,200})?",
        summary="Invalid setting: {config} {what}: {why}",
        fix="Correct the setting in the message, or remove it to use its default.",
        broad=True,
    ),
    Cause(
        family="config",
        name="setting-out-of-range",
        signs=("gpu_memory_utilization", "gpu-memory-utilization", "gpu memory utilization", "block_size",
               "max_num_seqs", "max-num-seqs", "max_model_len", "tensor_parallel_size", "pipeline_parallel_size",
               "dtype", "enable_prefix_caching", "chunked prefill", "chunked_prefill", "cudagraph_capture_sizes",
               "compilation_config", "max_logprobs", "swap_space", "cpu_offload_gb", "load_format", "load format",
               "scheduler", "mem_fraction_static", "dp_size", "chunked_prefill_size", "page_size",
               "distributed_executor_backend", "executor backend"),
        pattern=r"^(?:\w{1,40}\.){0,8}(?:ValueError|AssertionError|TypeError|NotImplementedError"
        r"|RuntimeError)[:\s].{0,200}?(?P<why>must|should|invalid|not supported|unknown|cannot|unsupported|expected"
        r"|is not|greater|less than|only support|require)",
        summary="The engine rejected the value of a setting.",
        fix="Remove the setting named in the message to use its default.",
        vague=True,
    ),
    Cause(
        family="config",
        name="setting-refused",
        signs=(),
        where=r"(?:vllm/config|arg_utils|server_args|argparse|cli_args|cli/)[^\n]{0,200}$",
        pattern=r"^(?:\w{1,40}\.){0,8}(?:ValueError|AssertionError|TypeError|NotImplementedError|KeyError"
        r"|RuntimeError)\b(?!.{0,80}(?:CUDA|memory|NVML))",
        summary="The engine rejected a setting of this launch.",
        fix="Correct the setting in the message, or remove it to use its default.",
        vague=True,
    ),
)  # fmt: skip
