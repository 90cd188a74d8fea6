#!/usr/bin/env bash
# A real vLLM on this GPU behind Ingot's front door, started cold and with the cache pack that the cold start leaves, then
# Ingot's own engine, and vLLM with the pack where compiling is forbidden (tests/bench/warm.py). The table is printed;
# the engines' logs come back in $OUT/PART.
#
#   tests/gpu/vllm.sh prepare       where there are a network and pip, as for tests/gpu/peer.sh
#   tests/gpu/vllm.sh unpack        on the GPU machine: unpacks the archives of .gpu-vllm that this call brought, and reads into memory
#                                   what a start of vLLM imports. All of them are too much for one call
#   tests/gpu/vllm.sh [PART ...]    on the GPU machine: dense (8B of Qwen3's shape) and moe (a third of the layers of Qwen3-30B-A3B,
#                                   in FP8), one after the other; by name also the parts of tests/gpu/vllm_failures.py, each all at
#                                   once: failures (starts that cannot go well), models (of Qwen3-Next's, DeepSeek-V3's and V3.2's
#                                   shapes) and ranks (two GPUs). INGOT_GPU_CAST names a cast for Ingot's own engine; `none` leaves it out, and
#                                   without one the kernels are cast first
#
# It ends within INGOT_GPU_SECONDS (255 for each of the first two parts, 100 for failures, 250 for models, 150 for ranks). INGOT_GPU_KEPT (/tmp/ingot-gpu) keeps vLLM and the cast for later calls.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/parts.sh
[ "${1:-}" != prepare ] || exec tests/gpu/peer.sh prepare "${2:-sm_90}"

# What both of vLLM's processes import, and the libraries that the first kernels load: from a cold disk half a minute.
read_ahead() {
    PYTHONPATH="$(vllm_site)" VLLM_USE_FLASHINFER_SAMPLER=0 timeout "$1" python3 - > /dev/null 2>&1 <<'PY' || true
import torch, transformers, triton, torch._inductor.compile_fx
if torch.cuda.is_available():
    (torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")).sum().item()
import vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.v1.worker.gpu_worker
PY
}

if [ "${1:-}" = unpack ]; then
    total="${INGOT_GPU_SECONDS:-150}"
    unpack_vllm
    echo "unpacked after $SECONDS s: $(ls "$kept/unpacked" | xargs)"
    read_ahead $((total - SECONDS))
    echo "read ahead after $SECONDS s"
    exit
fi

declare -A shapes=([dense]="--shape qwen3-8b" [moe]="--shape qwen3-30b-a3b-fp8 --layers 16")
declare -A limits=([dense]=255 [moe]=255 [failures]=100 [models]=250 [ranks]=150)
parts=("${@:-dense moe}")
[ $# -gt 0 ] || parts=(dense moe)
for part in "${parts[@]}"; do
    [ -n "${limits[$part]:-}" ] || { echo "There is no part '$part'. Name some of: ${!limits[*]}." >&2; exit 2; }
    all=$((${all:-0} + limits[$part]))
done
total="${INGOT_GPU_SECONDS:-$all}"
grace=20  # to end a server
set_up
find_vllm tests/gpu/vllm.sh
[[ "${parts[0]}" != dense && "${parts[0]}" != moe ]] || read_ahead 60  # its starts read as much
echo "vLLM is there after $SECONDS s"
if [ -z "${INGOT_GPU_CAST:-}" ]; then
    if [ ! -d "$kept/cast" ]; then
        run cast 100 "$(cast_command)" && mv "$work/cast" "$kept/cast" || true
    fi
    [ ! -d "$kept/cast" ] || export INGOT_GPU_CAST="$kept/cast"
fi
export INGOT_CAST="${INGOT_GPU_CAST#none}"
[ -n "$INGOT_CAST" ] || unset INGOT_CAST
for part in "${parts[@]}"; do
    left=$((total - SECONDS - grace))
    [ "$left" -le $((limits[$part] - grace)) ] || left=$((limits[$part] - grace))
    command="python3 -m tests.gpu.vllm_failures $part"
    [ -z "${shapes[$part]:-}" ] || command="python3 -m tests.bench.warm --device cuda ${shapes[$part]}"
    run "$part" "${limits[$part]}" "$command --seconds $left --keep ${OUT:-$work}/$part" || true
done
conclude
