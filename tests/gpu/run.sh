#!/usr/bin/env bash
# The native engine on a GPU, in one call: builds what it needs, checks parity with transformers, and times it.
#
#   tests/gpu/run.sh prepare   where there is a network: puts the wheels that a bare GPU machine may lack into .gpu-wheels
#   tests/gpu/run.sh           on the GPU machine (torch and transformers installed, no network needed)
set -euo pipefail
cd "$(dirname "$0")/../.."
wheels=.gpu-wheels
needed="msgspec pyzmq pytest pytest-asyncio pytest-timeout psutil tokenizers safetensors"

if [ "${1:-}" = prepare ]; then
    for version in 3.11 3.12; do
        # shellcheck disable=SC2086 # a list of names
        python3 -m pip download --quiet --constraint constraints.txt --only-binary :all: --python-version "$version" \
            --dest "$wheels" $needed
    done
    exit
fi

python3 - <<'PY'
import torch
assert torch.cuda.is_available(), "this machine has no GPU that torch can use"
print(torch.cuda.get_device_name(), "sm_{}{}".format(*torch.cuda.get_device_capability()), "torch", torch.__version__)
PY
if [ -d "$wheels" ]; then
    # shellcheck disable=SC2086
    python3 -m pip install --quiet --no-index --find-links "$wheels" $needed
fi
export PYTHONPATH=. PYTHONUNBUFFERED=1
python3 -m pytest tests/gpu -p no:cacheprovider -x
python3 -m tests.gpu.time_engine "$@"
