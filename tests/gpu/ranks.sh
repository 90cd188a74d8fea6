#!/usr/bin/env bash
# A model on two GPUs of this machine, part by part: that it is the model of one, how it ends, and what it gains. Each part
# has its own time limit, and all of them together end within INGOT_GPU_SECONDS (460).
#
#   tests/gpu/ranks.sh prepare [sm_90]   where there are a network, nvcc and .venv: what tests/gpu/run.sh prepares, and for
#                                        the part `vllm` what tests/gpu/peer.sh prepares
#   tests/gpu/ranks.sh [PART ...]        on the GPU machine: torch with NCCL, Triton and gcc installed, two GPUs, no network
#   tests/gpu/ranks.sh --dry-run [PART ...]   prints what would run, and for how long at most
#
# The parts, in the order of a run without names:
#   cast            builds every Triton kernel for these GPUs, unless INGOT_GPU_CAST names a cast
#   sums            our sums of both GPUs against NCCL's, by size
#   parity          two ranks write what one writes, by NCCL and with CUDA graphs, family by family
#   ends            a rank that is killed, stopped, hung or out of memory ends the launch, with that as its cause
#   qwen3-8b        one GPU and two take the same loads in turns: 128/512 tokens at 64 streams, 8192/256 at 8
#   qwen3-30b-a3b   the same, with a third of its layers
# and by name only, as more would not fit into the time:
#   vllm-8b         two GPUs beside vLLM on the same two. INGOT_VLLM names vLLM's command; without it the packed one is
#                   unpacked and run
#   vllm-30b-a3b    the same, with a third of its layers
#
# NCCL's own settings (NCCL_*) reach every process as they are here. With OUT set, the whole output is also written to
# $OUT/ranks.log.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/parts.sh

if [ "${1:-}" = prepare ]; then
    exec tests/gpu/peer.sh prepare "${2:-sm_90}"
fi

declare -A limits=([cast]=100 [sums]=60 [parity]=120 [ends]=120 [qwen3-8b]=150 [qwen3-30b-a3b]=150 [vllm-8b]=275 [vllm-30b-a3b]=275)
usual=(cast sums parity ends qwen3-8b qwen3-30b-a3b)
grace=20  # to end two servers
dry_run=
[ "${1:-}" != --dry-run ] || { dry_run=1; shift; }
parts=("${@:-${usual[@]}}")
[ $# -gt 0 ] || parts=("${usual[@]}")
for part in "${parts[@]}"; do
    [ -n "${limits[$part]:-}" ] || { echo "There is no part '$part'. Name some of: ${usual[*]} vllm-8b vllm-30b-a3b." >&2; exit 2; }
done
total="${INGOT_GPU_SECONDS:-460}"

pytest="TRITON_INTERPRET=0 python3 -m pytest -vv -s --tb=short --durations=5 -p no:cacheprovider tests/gpu/test_ranks_on_gpu.py"
command_of() {
    local seconds=$((limits[$1] - grace)) loads="--loads 128/512/64/64 8192/256/8/16"
    local bench="python3 -m tests.bench.peer --device cuda --starts 1 --rounds 3 --tensor-parallel-size 2 --seconds $seconds $loads"
    case $1 in
        cast) cast_command ;;
        sums) echo "python3 -m tests.gpu.bench.all_reduce" ;;
        parity) echo "$pytest -k 'both_ranks or one_writes or grows'" ;;
        ends) echo "$pytest -k 'ends or told'" ;;
        qwen3-8b) echo "$bench --beside one-gpu --shape qwen3-8b" ;;
        qwen3-30b-a3b) echo "$bench --beside one-gpu --shape qwen3-30b-a3b --layers 16" ;;
        vllm-8b) echo "$bench --shape qwen3-8b" ;;
        vllm-30b-a3b) echo "$bench --shape qwen3-30b-a3b --layers 16" ;;
    esac
}

# Every part but the cast itself runs sealed in one.
if [ "${parts[0]}" != cast ] && [ -z "${INGOT_GPU_CAST:-}" ]; then
    parts=(cast "${parts[@]}")
fi
if [ -n "$dry_run" ]; then
    arch=sm_90 work='$work'
    export INGOT_GPU_CAST="${INGOT_GPU_CAST:-$work/cast}"
    for part in "${parts[@]}"; do
        echo "=== $part: at most ${limits[$part]} s"
        command_of "$part"
    done
    exit
fi

[ -z "${OUT:-}" ] || exec > >(tee "$OUT/ranks.log") 2>&1
set_up
[[ " ${parts[*]} " != *" vllm-"* ]] || find_vllm tests/gpu/ranks.sh
for part in "${parts[@]}"; do
    if [ "$part" = cast ] && [ -z "${INGOT_GPU_CAST:-}" ]; then
        run cast "${limits[cast]}" "$(cast_command)" || break
        export INGOT_GPU_CAST="$work/cast"
    elif [ "$part" != cast ]; then
        run "$part" "${limits[$part]}" "$(command_of "$part")" || true
    fi
done
conclude
