"""The catalogue of known causes, one file a family. Order matters where two rows fit: the first one counts."""

from __future__ import annotations

from appliance.diagnosis.cause import Cause
from appliance.diagnosis.causes import (
    abi,
    arch,
    config,
    driver,
    host,
    kernel_crash,
    memory,
    model_config,
    permission,
    port,
    weights,
)

CATALOGUE: tuple[Cause, ...] = (
    *memory.CAUSES,
    *driver.CAUSES,
    *arch.CAUSES,
    *kernel_crash.CAUSES,
    *abi.CAUSES,
    *weights.CAUSES,
    *model_config.CAUSES,
    *port.CAUSES,
    *permission.CAUSES,
    *host.CAUSES,
    *config.CAUSES,
)
