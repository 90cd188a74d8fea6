#!/usr/bin/env bash
# Ingot beside vLLM on this GPU: both serve the same models of random weights, made on the spot, and take the same loads
# in turns (tests/bench/peer.py). No part takes more than five minutes.
#
#   tests/gpu/peer.sh prepare          where there are a network and pip: what tests/gpu/run.sh prepares, and in .gpu-vllm a vLLM
#                                      for sm_90, packed by ../shared/tools/gpu_vllm
#   tests/gpu/peer.sh [PART ...]       on the GPU machine: builds, checks and times. INGOT_VLLM names vLLM's command; without
#                                      it the packed one is unpacked and run
#   tests/gpu/peer.sh --dry-run [PART ...]   prints what would run, and for how long at most
#
# The parts, in the order of a run without names:
#   cast             builds every Triton kernel for this GPU, unless INGOT_GPU_CAST names a cast
#   verify           `ingot verify` proves the cast
#   tinyllama-1.1b   128/512 tokens at 1, 8, 64 and 256 streams, and 8192/256 at 1, 2 and 8
#   qwen3-8b         the same
#   qwen3-30b-a3b    the same, with a third of its layers, so that two servers fit on a GPU
# and by name only, as more would not fit into the time:
#   qwen3-next       8 of its 48 layers, two of them with attention (27 GB): 128/512 tokens at 1, 8 and 64 streams
#   deepseek-v3      4 layers, one of them dense, with a quarter of the experts (23 GB): the same
# Each model's part ends with its table and one JSON object. It does another round of its loads as long as there is time.
#
# All of them together end within INGOT_GPU_SECONDS (1200). With OUT set, the whole output is also written to $OUT/peer.log.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/parts.sh
tools=../shared/tools/gpu_vllm

if [ "${1:-}" = prepare ]; then
    tests/gpu/run.sh prepare "${2:-sm_90}"
    if [ -x "$tools/pack.sh" ]; then
        "$tools/pack.sh" "$packed"
    else
        echo "There is no $tools to pack a vLLM with: name the command of an installed one in INGOT_VLLM on the GPU machine."
    fi
    exit
fi

declare -A limits=([cast]=100 [verify]=100 [tinyllama-1.1b]=275 [qwen3-8b]=275 [qwen3-30b-a3b]=275 [qwen3-next]=275 [deepseek-v3]=275)
usual=(cast verify tinyllama-1.1b qwen3-8b qwen3-30b-a3b)
grace=25  # to end two servers
dry_run=
[ "${1:-}" != --dry-run ] || { dry_run=1; shift; }
parts=("${@:-${usual[@]}}")
[ $# -gt 0 ] || parts=("${usual[@]}")
for part in "${parts[@]}"; do
    [ -n "${limits[$part]:-}" ] || { echo "There is no part '$part'. Name some of: ${usual[*]} qwen3-next deepseek-v3." >&2; exit 2; }
done
total="${INGOT_GPU_SECONDS:-1200}"

command_of() {
    local seconds=$((limits[$1] - grace)) peer="python3 -m tests.bench.peer --device cuda --starts 1"
    local few="--rounds 3 --loads 128/512/1/2 128/512/8/8 128/512/64/64"  # so that both of these end within ten minutes
    case $1 in
        cast) cast_command ;;
        verify) echo "python3 -m appliance.cast verify --cast $INGOT_GPU_CAST" ;;
        qwen3-30b-a3b) echo "$peer --seconds $seconds --shape $1 --layers 16" ;;
        qwen3-next) echo "$peer --seconds $seconds --shape $1 --layers 8 $few" ;;
        deepseek-v3) echo "$peer --seconds $seconds --shape $1 --layers 4 $few" ;;
        *) echo "$peer --seconds $seconds --shape $1" ;;
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

[ -z "${OUT:-}" ] || exec > >(tee "$OUT/peer.log") 2>&1
set_up
find_vllm tests/gpu/peer.sh
for part in "${parts[@]}"; do
    if [ "$part" = cast ] && [ -z "${INGOT_GPU_CAST:-}" ]; then
        run cast "${limits[cast]}" "$(cast_command)" || break
        export INGOT_GPU_CAST="$work/cast"
    elif [ "$part" != cast ]; then
        run "$part" "${limits[$part]}" "$(command_of "$part")" || true
    fi
done
conclude
