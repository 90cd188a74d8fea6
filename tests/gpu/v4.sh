#!/usr/bin/env bash
# DeepSeek V4 on this GPU: its kernels against torch, the engine with and without graphs, and what both reach.
#
#   tests/gpu/v4.sh [PART ...]      of: check tune bench; without names check and bench
#
# The last line of `bench` is one JSON object, {figure: {value, goal, ok}}. With OUT set, the whole output is also written
# to $OUT/v4.log.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/parts.sh

declare -A limits=([check]=150 [tune]=120 [bench]=150)
parts=("${@:-check}")
[ $# -gt 0 ] || parts=(check bench)
for part in "${parts[@]}"; do
    [ -n "${limits[$part]:-}" ] || { echo "There is no part '$part'. Name some of: check tune bench." >&2; exit 2; }
done
total="${INGOT_GPU_SECONDS:-280}"
command_of() {
    case $1 in
        check) echo "TRITON_INTERPRET=0 python3 -m pytest -q -s --tb=short --durations=5 -p no:cacheprovider tests/gpu/test_deepseek_v4_on_gpu.py" ;;
        tune) echo "python3 -m tests.gpu.bench.deepseek_v4 tune" ;;
        bench) echo "python3 -m tests.gpu.bench.deepseek_v4" ;;
    esac
}
[ -z "${OUT:-}" ] || exec > >(tee "$OUT/v4.log") 2>&1
set_up
for part in "${parts[@]}"; do
    run "$part" "${limits[$part]}" "$(command_of "$part")" || true
done
conclude
