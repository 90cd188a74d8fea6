#!/usr/bin/env bash
# Casts in a process that sees no GPU, moves the cast, makes it read-only, and proves it sealed on this machine's GPU.
# Needs torch, triton, gcc and the few packages that the commands import; Ingot itself need not be installed.
#   tests/gpu/cast_and_verify.sh [sm_90] [options of `ingot cast`]
# The cast is thrown away, or left at $KEEP where that is set.
set -euo pipefail
arch="${1:-sm_90}"
[ $# -eq 0 ] || shift
python="${PYTHON:-python3}"
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
work="$(mktemp -d)"
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cast="${KEEP:-$work/moved}"

CUDA_VISIBLE_DEVICES="" "$python" -m appliance.cast cast --arch "$arch" --out "$work/made" "$@"
mv "$work/made" "$cast"
chmod -R a-w "$cast"
"$python" -m appliance.cast verify --cast "$cast"
