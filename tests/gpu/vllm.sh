#!/usr/bin/env bash
# A real vLLM on this GPU behind Ingot's front door, started cold and with the cache pack that the cold start leaves
# (tests/bench/warm.py); then Ingot's own engine. vLLM's logs and the launches' records come back in $OUT/vllm.
#
#   tests/gpu/vllm.sh prepare     where there are a network and pip, as for tests/gpu/peer.sh
#   tests/gpu/vllm.sh [ARGUMENT ...]   on the GPU machine; the arguments go to tests/bench/warm.py. INGOT_CAST names a cast for the
#                                 native engine, whose start is left out without one
#
# It ends within INGOT_GPU_SECONDS (580).
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/parts.sh
[ "${1:-}" != prepare ] || exec tests/gpu/peer.sh prepare "${2:-sm_90}"
total="${INGOT_GPU_SECONDS:-580}"
set_up
find_vllm tests/gpu/vllm.sh
run warm "$total" "python3 -m tests.bench.warm --device cuda --keep ${OUT:-$work}/vllm ${*:---shape qwen3-8b}"
conclude
