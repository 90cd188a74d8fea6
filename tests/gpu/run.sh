#!/usr/bin/env bash
# Everything that needs a GPU, part by part. Each part has its own time limit, so that one that hangs cannot hide the
# others, and all of them together end within INGOT_GPU_SECONDS (460).
#
#   tests/gpu/run.sh prepare [sm_90]   where there are a network, nvcc and .venv: puts the wheels that a bare GPU machine may lack
#                                      into .gpu-wheels, and FlashInfer's modules for Llama's heads into .gpu-cast
#   tests/gpu/run.sh [PART ...]        on the GPU machine: torch, Triton, transformers and gcc installed, no network
#
# The parts, in the order of a run without names:
#   verify      `ingot verify` proves the cast: every kernel, a model's forward pass, and that nothing was compiled
#   seal        what would compile in a sealed process is refused; the core's process generates from the cast alone
#   door        the whole front door: preflight on real hardware, an answer, and the ends that only a GPU shows
#   memory      what a core takes of the GPU's memory against the plan: prints a line MEMORY {...} for each model
#   engine      the engine against transformers, family by family
#   flashinfer  FlashInfer's backends against the references, sealed in .gpu-cast
#   bench       what each kernel reaches of this GPU's ceilings
# and by name only:
#   tune        times tiles for the attention tables, of the head sizes in INGOT_TUNE (256)
#   tune-delta  times tiles for the tables of the gated delta rule
#   tune-sparse times tiles and parts of sparse attention, and of its indexer
#
# Parts that need a cast get one first, made in a process that sees no GPU, then moved and made read-only; INGOT_GPU_CAST
# names one to take instead. With OUT set, the whole output is also written to $OUT/run.log.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/parts.sh

if [ "${1:-}" = prepare ]; then
    # Only what such a machine lacks: the rest (torch, Triton, transformers) must fit its driver, and is its own.
    for platform in manylinux1_x86_64 manylinux2014_x86_64 manylinux_2_17_x86_64 manylinux_2_28_x86_64 manylinux_2_31_x86_64; do platforms="${platforms:-} --platform $platform"; done
    # shellcheck disable=SC2086 # lists of words
    python3 -m pip download --quiet --no-deps --constraint constraints.txt --only-binary :all: --python-version 3.12 \
        $platforms --dest "$wheels" msgspec pyzmq pytest-asyncio llguidance apache-tvm-ffi flashinfer-python
    # Beside whose kernels ours are timed.
    # shellcheck disable=SC2086
    python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 $platforms --dest "$wheels/fla" fla-core==0.6.0 einops
    # The front door's own, with all that they need but the large ones that every such machine has.
    # shellcheck disable=SC2086
    python3 -m pip download --quiet --constraint constraints.txt --only-binary :all: --python-version 3.12 $platforms \
        --dest "$wheels/front-door" click httptools httpx jinja2 litestar litestar-htmx nvidia-ml-py prometheus-client psutil \
        py-spy pyyaml rich tokenizers uvicorn
    rm -f "$wheels"/front-door/{numpy,hf_xet,huggingface_hub,faker,msgspec}*.whl
    # Ingot's own venv has no FlashInfer, which only GPUs use: what building its modules takes lies beside it.
    site="$(mktemp -d)"
    trap 'rm -rf "$site"' EXIT
    .venv/bin/python -m pip install --quiet --no-deps --constraint constraints.txt --target "$site" \
        flashinfer-python apache-tvm-ffi einops ninja tabulate nvidia-cublas==13.1.1.3 nvidia-curand==10.4.0.35
    PATH="$site/bin:$PATH" PYTHONPATH="$PWD:$site" .venv/bin/python - "${2:-sm_90}" "$modules" <<'PY'
import sys
from pathlib import Path
from kernels.cast.architectures import architecture_named
from kernels.cast.flashinfer import build, planned
from kernels.context import Context

architecture, folder = architecture_named(sys.argv[1]), Path(sys.argv[2])
caches = ("bfloat16", "float8_e4m3fn")
models = [Context("cuda", architecture.capability, "bfloat16", head_dim=128, num_heads=32, num_kv_heads=kv_heads,
                  kv_cache_dtype=cache, libraries={"flashinfer": "9"}) for cache in caches for kv_heads in (8, 32)]
build(folder, architecture, planned(architecture.number, models), 2, lambda module: print(module.name))
PY
    exit
fi

# Seconds that each part may take. On an H100 all of them together take about half of their sum.
declare -A limits=([cast]=100 [verify]=100 [seal]=120 [door]=120 [memory]=190 [engine]=150 [flashinfer]=60 [bench]=180 [tune]=240 [tune-delta]=240 [tune-sparse]=240)
usual=(verify seal door memory engine flashinfer bench)
parts=("${@:-${usual[@]}}")
[ $# -gt 0 ] || parts=("${usual[@]}")
for part in "${parts[@]}"; do
    [ -n "${limits[$part]:-}" ] || { echo "There is no part '$part'. Name some of: ${usual[*]} tune tune-delta tune-sparse." >&2; exit 2; }
done
total="${INGOT_GPU_SECONDS:-460}"
[ -z "${OUT:-}" ] || exec > >(tee "$OUT/run.log") 2>&1

set_up
pytest="TRITON_INTERPRET=0 python3 -m pytest -vv -s --tb=short --durations=5 -p no:cacheprovider"
command_of() {
    case $1 in
        verify) echo "python3 -m appliance.cast verify --cast $INGOT_GPU_CAST" ;;
        seal) echo "$pytest tests/gpu/test_seal.py tests/gpu/test_sealed_engine.py" ;;
        door) echo "$pytest tests/gpu/test_front_door_on_gpu.py" ;;
        memory) echo "$pytest tests/gpu/test_memory_plan.py" ;;
        # Not sealed, and without FlashInfer, which would compile what it lacks.
        engine) echo "$pytest tests/gpu/test_loading_on_gpu.py tests/gpu/test_held_on_gpu.py tests/gpu/test_graphs_on_gpu.py tests/gpu/test_native_engine.py -n 8" ;;
        flashinfer) echo "PYTHONPATH=$with_flashinfer INGOT_FLASHINFER_CAST=$PWD/$modules $pytest tests/gpu/test_flashinfer_sealed.py" ;;
        bench) if [ -d "$modules" ]; then echo "PYTHONPATH=$with_flashinfer INGOT_FLASHINFER_CAST=$PWD/$modules python3 -m tests.gpu.bench.table"
               else echo "python3 -m tests.gpu.bench.table"; fi ;;
        tune) echo "python3 -m tests.gpu.bench.tune_attention ${INGOT_TUNE:-256}" ;;
        tune-delta) echo "python3 -m tests.gpu.bench.tune_gated_delta" ;;
        tune-sparse) echo "python3 -m tests.gpu.bench.tune_sparse" ;;
    esac
}

if [[ " ${parts[*]} " =~ \ (verify|seal|door|memory)\  ]] && [ -z "${INGOT_GPU_CAST:-}" ]; then
    run cast "${limits[cast]}" "$(cast_command)" && export INGOT_GPU_CAST="$work/cast"
fi
for part in "${parts[@]}"; do
    case $part in
        verify | seal | door | memory) needed="${INGOT_GPU_CAST:-}" ;;
        flashinfer) needed="$([ ! -d "$modules" ] || echo "$modules")" ;;
        *) needed=nothing ;;
    esac
    if [ -n "$needed" ]; then
        run "$part" "${limits[$part]}" "$(command_of "$part")" || true
    else
        note "$part" 0 "NOT RUN: it needs a cast, and there is none"
        failed=1
    fi
done
conclude
