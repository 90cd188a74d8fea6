#!/usr/bin/env bash
# Everything that needs a GPU, in one call: casts in a process that sees none, proves the cast sealed, holds the engine to
# transformers, and prints what each kernel reaches of this GPU's ceilings.
#
#   tests/gpu/run.sh prepare [sm_90]   where there is a network and nvcc: puts the wheels that a bare GPU machine may lack
#                                      into .gpu-wheels, and FlashInfer's modules for Llama's heads into .gpu-cast
#   tests/gpu/run.sh                   on the GPU machine: torch, Triton, transformers and gcc installed, no network
set -euo pipefail
cd "$(dirname "$0")/../.."
wheels=.gpu-wheels
modules=.gpu-cast

if [ "${1:-}" = prepare ]; then
    # Only what such a machine lacks: the rest (torch, Triton, transformers) must fit its driver, and is its own.
    for platform in manylinux1_x86_64 manylinux2014_x86_64 manylinux_2_17_x86_64 manylinux_2_28_x86_64; do platforms="${platforms:-} --platform $platform"; done
    # shellcheck disable=SC2086 # lists of words
    python3 -m pip download --quiet --no-deps --constraint constraints.txt --only-binary :all: --python-version 3.12 \
        $platforms --dest "$wheels" msgspec pyzmq pytest-asyncio apache-tvm-ffi flashinfer-python
    # The front door's own, with all that they need but the large ones that every such machine has.
    # shellcheck disable=SC2086
    python3 -m pip download --quiet --constraint constraints.txt --only-binary :all: --python-version 3.12 $platforms \
        --dest "$wheels/front-door" click httptools httpx jinja2 litestar litestar-htmx nvidia-ml-py prometheus-client psutil \
        py-spy pyyaml rich tokenizers uvicorn
    # Ingot's own wheel tells the commands that there are; their code is the checkout's, which comes first.
    python3 -m pip wheel --quiet --no-deps --wheel-dir "$wheels/front-door" .
    rm -f "$wheels"/front-door/{numpy,hf_xet,huggingface_hub,faker,msgspec}*.whl
    python3 - "${2:-sm_90}" "$modules" <<'PY'
import sys
from pathlib import Path
from kernels.cast.architectures import architecture_named
from kernels.cast.flashinfer import build, planned
from kernels.context import Context

architecture, folder = architecture_named(sys.argv[1]), Path(sys.argv[2])
caches = ("bfloat16", "float8_e4m3fn")
models = [Context("cuda", architecture.capability, "bfloat16", head_dim=128, num_heads=32, num_kv_heads=8,
                  kv_cache_dtype=cache, libraries={"flashinfer": "9"}) for cache in caches]
build(folder, architecture, planned(architecture.number, models), 2, lambda module: print(module.name))
PY
    exit
fi

export PYTHONPATH=. PYTHONUNBUFFERED=1
with_flashinfer="$PYTHONPATH"
if [ -d "$wheels" ]; then
    site="$(mktemp -d)"
    install="python3 -m pip install --quiet --no-index --no-deps --no-compile --target"
    $install "$site/flashinfer" "$wheels"/{flashinfer,apache}*.whl
    $install "$site/others" "$wheels"/{msgspec,pytest,pyzmq}*.whl
    $install "$site/front-door" "$wheels"/front-door/*.whl
    PATH="$site/front-door/bin:$PATH"  # py-spy
    PYTHONPATH=".:$site/others:$site/front-door"
    with_flashinfer="$PYTHONPATH:$site/flashinfer"
fi
python3 - <<'PY'
import torch, triton
assert torch.cuda.is_available(), "this machine has no GPU that torch can use"
major, minor = torch.cuda.get_device_capability()
print(f"{torch.cuda.get_device_name()} sm_{major}{minor}, torch {torch.__version__}, Triton {triton.__version__}")
PY
arch="$(python3 -c 'import torch; print("sm_{}{}".format(*torch.cuda.get_device_capability()))')"

failed=0
work="$(mktemp -d)"
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
KEEP="$work/cast" tests/gpu/cast_and_verify.sh "$arch" --triton-only || failed=1
INGOT_GPU_CAST="$work/cast" TRITON_INTERPRET=0 python3 -m pytest tests/gpu/test_sealed_engine.py -q -p no:cacheprovider \
    || failed=1
INGOT_GPU_CAST="$work/cast" TRITON_INTERPRET=0 python3 -m pytest tests/gpu/test_front_door_on_gpu.py -q -s \
    -p no:cacheprovider || failed=1
# The engine is not sealed in its tests, and would have FlashInfer compile what it lacks.
TRITON_INTERPRET=0 python3 -m pytest tests/gpu/test_native_engine.py -q -p no:cacheprovider -n 8 || failed=1
# Prints a line MEMORY {...} for each model: what was planned beside what was taken.
TRITON_INTERPRET=0 python3 -m pytest tests/gpu/test_memory_plan.py -q -s -p no:cacheprovider || failed=1
if [ -d "$modules" ]; then
    export PYTHONPATH="$with_flashinfer" INGOT_FLASHINFER_CAST="$PWD/$modules"
    TRITON_INTERPRET=0 python3 -m pytest tests/gpu/test_flashinfer_sealed.py -q -p no:cacheprovider || failed=1
fi
python3 -m tests.gpu.bench.table || failed=1
exit "$failed"
