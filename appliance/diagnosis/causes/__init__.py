"""The catalogue of known causes, one file per family. Of several rows that match, the one that fits most closely
counts; their order means nothing."""

from __future__ import annotations

from appliance.diagnosis.cause import Cause
from appliance.diagnosis.causes import (
    abi,
    arch,
    backend,
    compile,
    config,
    crash_loop,
    driver,
    hang,
    host,
    jit_toolchain,
    kernel_crash,
    memory,
    mig,
    model_config,
    multi_node,
    nccl,
    offline,
    permission,
    port,
    quant_dtype,
    weights,
)

CATALOGUE: tuple[Cause, ...] = (
    *mig.CAUSES,
    *memory.CAUSES,
    *kernel_crash.CAUSES,
    *arch.CAUSES,
    *backend.CHOSEN,
    *jit_toolchain.CAUSES,
    *driver.CAUSES,
    *nccl.CAUSES,
    *port.CAUSES,
    *permission.CAUSES,
    *host.CAUSES,
    *multi_node.CAUSES,
    *abi.CAUSES,
    *offline.CAUSES,
    *weights.CAUSES,
    *quant_dtype.CAUSES,
    *model_config.CAUSES,
    *config.CAUSES,
    *backend.CAUSES,
    *compile.CAUSES,
    *hang.CAUSES,
    *crash_loop.CAUSES,
)
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(cause.family for cause in CATALOGUE))
