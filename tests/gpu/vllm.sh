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
packed=.gpu-vllm
set_up
if [ -z "${INGOT_VLLM:-}" ]; then
    [ -d "$packed" ] || { echo "There is no $packed: run tests/gpu/vllm.sh prepare first, or name vLLM's command in INGOT_VLLM." >&2; exit 2; }
    # As an installation lies: preflight reads its versions from there.
    prefix="$work/vllm" site="$work/vllm/lib/python$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages"
    mkdir -p "$prefix/bin" "$site"
    for archive in library python packages; do
        xz -dc "$packed/$archive.tar.xz" | tar x -C "$site"
    done
    export INGOT_VLLM="$prefix/bin/vllm"
    cat > "$INGOT_VLLM" <<SH
#!/usr/bin/env bash
# The packed vLLM comes without FlashInfer, whose sampler and gated delta rule it would take.
export PYTHONPATH="$site" VLLM_USE_FLASHINFER_SAMPLER=0
exec python3 -m vllm.entrypoints.cli.main "\$@" --gdn-prefill-backend triton
SH
    chmod +x "$INGOT_VLLM"
fi
run warm "$total" "python3 -m tests.bench.warm --device cuda --keep ${OUT:-$work}/vllm ${*:---shape qwen3-8b}"
conclude
