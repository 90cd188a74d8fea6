#!/usr/bin/env bash
# A cold start of a model on one GPU, phase by phase: how long each takes, how fast the weights come, and what loading
# takes of the host's memory, beside what its disk, its cache of files and its bus can do.
#
#   tests/gpu/run.sh prepare [sm_90]   where there is a network: the wheels to carry
#   tests/gpu/start.sh [OPTION ...]    on the GPU machine; the options are those of `python -m tests.gpu.start`
#
# A model of random weights (Qwen3-8B's shape) and the cast of its kernels are made on the spot, unless INGOT_GPU_CAST
# names a cast. The last line is one JSON object {figure: {value, goal, ok}}. With OUT set, the whole output is also
# written to $OUT/start.log.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/parts.sh

[ -z "${OUT:-}" ] || exec > >(tee "$OUT/start.log") 2>&1
set_up
python3 -m tests.gpu.start --arch "$arch" "$@"
