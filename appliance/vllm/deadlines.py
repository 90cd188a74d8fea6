"""How long vLLM's phases may take, where that differs from other engines."""

from __future__ import annotations

from appliance.engine_process import deadlines
from appliance.protocol import Phase

# From a cold disk vLLM imports for half a minute, in two processes. It compiles for minutes without output: the model's
# graph, and kernels of its libraries while it profiles memory and captures CUDA graphs.
FLOORS_S: dict[str, float] = deadlines.FLOORS_S | {
    Phase.ENGINE_START: 300.0,
    Phase.WEIGHTS: 300.0,
    Phase.COMPILE: 900.0,
    Phase.CACHE: 900.0,
    Phase.GRAPHS: 900.0,
    Phase.SELF_TEST: 300.0,
}
