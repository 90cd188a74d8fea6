"""The checks, in the order in which they run: a row each. A new check is a file in checks/ and a row here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from appliance import engines
from appliance.preflight.checks import (
    allocator,
    architecture,
    backends,
    block_size,
    cache_packs,
    caches_writable,
    cast,
    chat_template,
    clock,
    config,
    confinement,
    context_length,
    contradictions,
    device,
    digest,
    disk_space,
    drafts,
    driver,
    dtype,
    engine,
    gpu_code,
    held_memory,
    host_memory,
    hub_access,
    libraries,
    limits,
    locale,
    memory,
    model_folder,
    parallelism,
    port,
    profile,
    quantization,
    shared_memory,
    stale_caches,
    temporary_folder,
    tokenizer,
    toolchain,
    unused_settings,
    variables,
    visible_devices,
    vllm_build,
    vllm_kernels,
    weights,
)
from appliance.preflight.subject import Subject
from appliance.protocol import Finding


@dataclass(frozen=True)
class Check:
    """`run` yields findings; a CheckpointError that it raises becomes one. It is skipped when a check named in `after`
    found an error or was itself skipped. It is left out for an engine that is not among `engines`; where it builds on
    the model's config (`on_config`), for a model that only vLLM knows; and where it looks at the engine's own machine
    (`local`), for a preflight of another one. `remedy` says, for people, what fixes its findings."""

    id: str
    title: str
    run: Callable[[Subject], Iterator[Finding]]
    group: str = ""
    remedy: str = ""
    after: tuple[str, ...] = ()
    engines: tuple[str, ...] = engines.NAMES
    on_config: bool = False
    local: bool = False

    def concerns(self, subject: Subject) -> bool:
        # A recording describes another machine's hardware; this machine's files and libraries say nothing about it.
        if self.local and (subject.context.surroundings is None or subject.context.inventory.replayed):
            return False
        return not self.on_config or not subject.traits.reads_more or subject.readable


NATIVE, VLLM = (engines.NATIVE.name,), (engines.VLLM.name,)
PROFILE, MODEL, DEVICE, MEMORY = "Profile", "Model", "Device", "Memory"
LIBRARIES, ENVIRONMENT, MACHINE = "Libraries", "Environment", "Machine"

CHECKS: tuple[Check, ...] = (
    Check("profile", "Profile is valid", profile.run, PROFILE,
          "correct the value or remove the key; often automatic"),
    Check("engine", "Engine is installed", engine.run, PROFILE,
          "use `engine: native`, or install vLLM", ("profile",)),
    Check("unused-settings", "Every setting has an effect", unused_settings.run, PROFILE,
          "remove the setting", ("profile",)),
    Check("model-folder", "Model folder exists", model_folder.run, MODEL,
          "use the nearest folder's name, or copy the folder", ("profile",)),
    Check("config", "Config is readable", config.run, MODEL,
          "copy config.json again; use `engine: vllm` for a quantisation that only vLLM supports", ("model-folder",)),
    Check("architecture", "Architecture is supported", architecture.run, MODEL,
          "switch to the engine that supports the model", ("config", "engine")),
    Check("weights", "Weights are complete", weights.run, MODEL,
          "copy the named files again", ("model-folder",)),
    Check("tokenizer", "Tokenizer loads", tokenizer.run, MODEL,
          "copy tokenizer.json from the model's source, or convert it", ("model-folder",)),
    Check("chat-template", "Chat template works", chat_template.run, MODEL,
          "copy chat_template.jinja from the model's source", ("model-folder",)),
    Check("hub-access", "Nothing has to be downloaded", hub_access.run, MODEL,
          "copy the missing files; code from other repositories is not supported", ("config", "engine"), VLLM),
    Check("digest", "Model is the expected one", digest.run, MODEL,
          "copy the expected model, or put its digest into the profile",
          ("config", "weights", "tokenizer", "chat-template")),
    Check("device", "Device exists", device.run, DEVICE,
          "use `device: auto`, or repair the driver", ("profile",)),
    Check("visible-devices", "CUDA_VISIBLE_DEVICES lists devices", visible_devices.run, DEVICE,
          "set the variable to existing UUIDs", ("device",)),
    Check("parallelism", "Number of devices is possible", parallelism.run, DEVICE,
          "use the largest size that divides heads and blocks and has enough GPUs", ("config", "engine", "device")),
    Check("vllm-build", "vLLM is built for the device", vllm_build.run, DEVICE,
          "install a build for this device, or use the native engine", ("engine", "device"), VLLM, local=True),
    Check("vllm-kernels", "vLLM has the model's kernels", vllm_kernels.run, DEVICE,
          "use the native engine, or an image that has them", ("config", "engine", "device"), VLLM, local=True),
    Check("driver", "Driver supports the CUDA version", driver.run, DEVICE,
          "install a newer driver, or use the image for this one", ("device", "engine")),
    Check("gpu-code", "Libraries support the GPU", gpu_code.run, DEVICE,
          "use the image for this GPU", ("driver",), local=True),
    Check("context-length", "Context is within the model's limit", context_length.run, MODEL,
          "set `max-model-len` to the model's own length", ("architecture",)),
    Check("block-size", "Blocks hold whole entries", block_size.run, MODEL,
          "set `block-size` to what the model needs", ("architecture",), NATIVE),
    Check("dtype", "Number formats are supported", dtype.run, MODEL,
          "use float16 or the checkpoint's own format", ("architecture", "device"), on_config=True),
    Check("drafts", "Drafts are possible", drafts.run, MODEL,
          "draft by n-grams, or not at all", ("architecture", "weights")),
    Check("quantization", "Quantisation is supported", quantization.run, MODEL,
          "use the checkpoint's own method, or the model in another format", ("architecture", "device"), VLLM),
    Check("backends", "Backends can run here", backends.run, DEVICE,
          "set the backend to `auto`", ("architecture", "device", "parallelism"), on_config=True),
    Check("cast", "Kernels are cast", cast.run, LIBRARIES,
          "run the command that casts the missing kernels", ("architecture", "device", "parallelism"), NATIVE),
    Check("held-memory", "Memory is not in use by others", held_memory.run, MEMORY,
          "end the program, or lower `gpu-memory-utilization` to what is free", ("device",)),
    Check("memory", "Memory is sufficient", memory.run, MEMORY,
          "use the longest `max-model-len` that fits", ("architecture", "device", "context-length")),
    Check("allocator", "Allocator settings are safe", allocator.run, ENVIRONMENT,
          "remove the variable", ("profile",)),
    Check("variables", "Variables are spelled correctly", variables.run, ENVIRONMENT,
          "use the intended name, or unset the variable", ("profile",)),
    Check("contradictions", "Environment agrees with the profile", contradictions.run, ENVIRONMENT,
          "unset the variable", ("profile", "device", "engine")),
    Check("libraries", "Libraries match each other", libraries.run, LIBRARIES,
          "install the matching version", ("engine",), local=True),
    Check("toolchain", "Compilers are installed", toolchain.run, LIBRARIES,
          "add the tool's folder to PATH, or install its package", ("device", "engine"), local=True),
    Check("disk-space", "Disks have free space", disk_space.run, MACHINE,
          "delete old launches; mount the folder writable", ("device", "engine"), local=True),
    Check("caches-writable", "Caches are writable", caches_writable.run, LIBRARIES,
          "set the folder's variable to a writable volume", ("device", "engine", "disk-space"), local=True),
    Check("stale-caches", "Caches match the installed versions", stale_caches.run, LIBRARIES,
          "run the command that clears them", ("device", "engine"), local=True),
    Check("cache-packs", "Compiled code is at hand", cache_packs.run, LIBRARIES,
          "make a pack with this software and these settings", ("device", "engine", "architecture", "parallelism"),
          VLLM, local=True),
    Check("shared-memory", "Shared memory is large enough", shared_memory.run, MEMORY,
          "raise `shm_size`, or remove leftovers", ("profile",)),
    Check("temporary-folder", "Temporary folder is usable", temporary_folder.run, MACHINE,
          "set TMPDIR to a short, writable folder", ("device", "engine"), local=True),
    Check("limits", "Process limits suffice", limits.run, MACHINE,
          "raise `ulimit` or `pids_limit`", ("profile",), local=True),
    Check("host-memory", "Kernel limits allow enough memory", host_memory.run, MEMORY,
          "change the kernel setting", ("architecture", "device"), local=True),
    Check("clock", "Clock is not behind", clock.run, MACHINE,
          "set the clock", local=True),
    Check("locale", "Locale is UTF-8", locale.run, ENVIRONMENT,
          "set LC_ALL=C.UTF-8", ("profile",)),
    Check("confinement", "Container may read the model", confinement.run, MACHINE,
          "add `:z` to the volume, or label the folder", ("model-folder",), local=True),
    Check("port", "Port is free", port.run, MACHINE,
          "end the process, or use another port"),
)  # fmt: skip
