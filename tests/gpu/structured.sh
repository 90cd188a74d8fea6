#!/usr/bin/env bash
# What structured output costs on this GPU at 64 streams, of Ingot and of vLLM with the same schemas
# (tests/bench/structured_peer.py).
#
#   tests/gpu/structured.sh prepare     where there are a network and pip, as for tests/gpu/peer.sh
#   tests/gpu/structured.sh [ARGUMENT ...]   on the GPU machine; the arguments go to tests/bench/structured_peer.py
#                                 (--shape tinyllama-1.1b is a smaller model). INGOT_GPU_CAST names a cast; without one, it
#                                 is built while vLLM starts
#
# It ends within INGOT_GPU_SECONDS (250).
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/parts.sh
[ "${1:-}" != prepare ] || exec tests/gpu/peer.sh prepare "${2:-sm_90}"
total="${INGOT_GPU_SECONDS:-250}"
[ -z "${OUT:-}" ] || exec > >(tee "$OUT/structured.log") 2>&1
set_up
find_vllm tests/gpu/structured.sh
build=true
[ -n "${INGOT_GPU_CAST:-}" ] || { build="$(cast_command)"; export INGOT_GPU_CAST="$work/cast"; }
measure="python3 -m tests.bench.structured_peer --seconds $((total - SECONDS - 30)) ${*:-}"
run structured "$total" "{ $build; } > $work/cast.log 2>&1 & $measure || { cat $work/cast.log; exit 1; }"
conclude
