"""The checks, in the order in which they run: a row each. A new check is a file in checks/ and a row here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from appliance.preflight.checks import (
    allocator,
    architecture,
    backends,
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
    weights,
)
from appliance.preflight.subject import Subject
from appliance.protocol import Finding


@dataclass(frozen=True)
class Check:
    """`run` yields findings; a CheckpointError that it raises becomes one. It is skipped when a check named in `after`
    found an error or was itself skipped. It is left out for an engine that is not among `engines`; where it builds on
    the model's config (`on_config`), for a model that only vLLM knows; and where it looks at the engine's own machine
    (`local`), for a preflight of another one. `mends` says how its findings are mended, for people."""

    id: str
    title: str
    run: Callable[[Subject], Iterator[Finding]]
    group: str = ""
    mends: str = ""
    after: tuple[str, ...] = ()
    engines: tuple[str, ...] = ("native", "vllm")
    on_config: bool = False
    local: bool = False

    def concerns(self, subject: Subject) -> bool:
        # A recording tells of another machine's hardware: this one's files and libraries say nothing of that.
        if self.local and (subject.context.surroundings is None or subject.context.inventory.replayed):
            return False
        return not self.on_config or subject.engine == "native" or subject.readable


NATIVE, VLLM = ("native",), ("vllm",)
PROFILE, MODEL, DEVICE, MEMORY = "Profile", "Model", "Device", "Memory"
LIBRARIES, ENVIRONMENT, MACHINE = "Libraries", "Environment", "Machine"

CHECKS: tuple[Check, ...] = (
    Check("profile", "Profile is valid", profile.run, PROFILE,
          "the value that is meant, or the key removed: often a patch"),
    Check("engine", "Engine is installed", engine.run, PROFILE,
          "`engine: native`, or vLLM installed", ("profile",)),
    Check("unused-settings", "Every setting has an effect", unused_settings.run, PROFILE,
          "the setting removed", ("profile",)),
    Check("model-folder", "Model folder is there", model_folder.run, MODEL,
          "the nearest folder's name, or the folder copied", ("profile",)),
    Check("config", "Config is readable", config.run, MODEL,
          "config.json copied again; `engine: vllm` for a quantisation that only vLLM has", ("model-folder",)),
    Check("architecture", "Architecture is supported", architecture.run, MODEL,
          "`engine: vllm` where it is installed and knows the model, or the other way round", ("config", "engine")),
    Check("weights", "Weights are complete", weights.run, MODEL,
          "the files that are named, copied again", ("model-folder",)),
    Check("tokenizer", "Tokenizer loads", tokenizer.run, MODEL,
          "tokenizer.json copied from the model's source, or converted", ("model-folder",)),
    Check("chat-template", "Chat template works", chat_template.run, MODEL,
          "chat_template.jinja copied from the model's source", ("model-folder",)),
    Check("hub-access", "Nothing has to be fetched", hub_access.run, MODEL,
          "the missing files copied; no code of other repositories", ("config", "engine"), VLLM),
    Check("digest", "Model is the expected one", digest.run, MODEL,
          "the expected model copied, or its digest taken into the profile",
          ("config", "weights", "tokenizer", "chat-template")),
    Check("device", "Device is there", device.run, DEVICE,
          "`device: auto`, or the driver repaired", ("profile",)),
    Check("visible-devices", "CUDA_VISIBLE_DEVICES names devices", visible_devices.run, DEVICE,
          "the variable with the UUIDs that there are", ("device",)),
    Check("parallelism", "Number of devices is possible", parallelism.run, DEVICE,
          "the largest size that divides heads and blocks and has GPUs", ("config", "engine", "device")),
    Check("vllm-build", "vLLM is built for the device", vllm_build.run, DEVICE,
          "a build for this device, or the native engine", ("engine", "device"), VLLM, local=True),
    Check("driver", "Driver and CUDA fit", driver.run, DEVICE,
          "a newer driver, or the image for this one", ("device", "engine")),
    Check("gpu-code", "Libraries cover the GPU", gpu_code.run, DEVICE,
          "the image that is built for this GPU", ("driver",), local=True),
    Check("context-length", "Context is within the model's", context_length.run, MODEL,
          "`max-model-len` at the model's own length", ("architecture",)),
    Check("dtype", "Number formats are possible", dtype.run, MODEL,
          "float16, or the checkpoint's own format", ("architecture", "device"), on_config=True),
    Check("quantization", "Quantisation fits GPU and engine", quantization.run, MODEL,
          "the checkpoint's own method and format, or the model in another form", ("architecture", "device"), VLLM),
    Check("backends", "Backends can run here", backends.run, DEVICE,
          "`auto` for the backend that cannot", ("architecture", "device", "parallelism"), on_config=True),
    Check("cast", "Kernels are cast", cast.run, LIBRARIES,
          "the command that casts what is missing", ("architecture", "device", "parallelism"), NATIVE),
    Check("held-memory", "Memory is not held by others", held_memory.run, MEMORY,
          "the program ended, or `gpu-memory-utilization` lowered to what is free", ("device",)),
    Check("memory", "Memory is enough", memory.run, MEMORY,
          "the longest `max-model-len` that fits", ("architecture", "device", "context-length")),
    Check("allocator", "Allocator settings are safe", allocator.run, ENVIRONMENT,
          "the variable removed", ("profile",)),
    Check("variables", "Variables are spelt right", variables.run, ENVIRONMENT,
          "the name that is meant, or the variable unset", ("profile",)),
    Check("contradictions", "Environment agrees with the profile", contradictions.run, ENVIRONMENT,
          "the variable unset", ("profile", "device", "engine")),
    Check("libraries", "Libraries fit each other", libraries.run, LIBRARIES,
          "the version that the other was built for", ("engine",), local=True),
    Check("toolchain", "Compilers are there", toolchain.run, LIBRARIES,
          "the tool's folder on PATH, or its package installed", ("device", "engine"), local=True),
    Check("disk-space", "Disks have room", disk_space.run, MACHINE,
          "old launches deleted, the folder mounted writable", ("device", "engine"), local=True),
    Check("caches-writable", "Caches can be written", caches_writable.run, LIBRARIES,
          "the folder's variable set to a writable volume", ("device", "engine", "disk-space"), local=True),
    Check("stale-caches", "Caches are of these versions", stale_caches.run, LIBRARIES,
          "the command that clears them", ("device", "engine"), local=True),
    Check("shared-memory", "Shared memory is large enough", shared_memory.run, MEMORY,
          "`shm_size`, or leftovers removed", ("profile",)),
    Check("temporary-folder", "Temporary folder is usable", temporary_folder.run, MACHINE,
          "TMPDIR set to a short, writable folder", ("device", "engine"), local=True),
    Check("limits", "Limits leave room", limits.run, MACHINE,
          "`ulimit`, `pids_limit`", ("profile",), local=True),
    Check("host-memory", "Kernel hands out memory", host_memory.run, MEMORY,
          "the kernel's setting", ("architecture", "device"), local=True),
    Check("clock", "Clock is not behind", clock.run, MACHINE,
          "the clock set", local=True),
    Check("locale", "Locale is UTF-8", locale.run, ENVIRONMENT,
          "LC_ALL=C.UTF-8", ("profile",)),
    Check("confinement", "Container may read the model", confinement.run, MACHINE,
          "`:z` at the volume, or the folder labelled", ("model-folder",), local=True),
    Check("port", "Port is free", port.run, MACHINE,
          "the process ended, or another port"),
)  # fmt: skip
